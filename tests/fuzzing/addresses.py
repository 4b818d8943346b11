"""Every subject of ``shared.protocol.subjects``, with names for what is open in it."""

import inspect
from collections.abc import Sequence

from shared.protocol import subjects
from shared.protocol.subjects import ModelSubjects
from tests.services.gateway.gateway_rig import MODEL

OF_MODEL = subjects.of_model(MODEL)


def names() -> list[str]:
    """Of all that is a subject there, or makes one, in the order of the file."""
    constants = [name for name, value in vars(subjects).items() if _is_subject(name, value)]
    makers = [name for name, value in vars(subjects).items() if _makes_subject(name, value)]
    return [*constants, *makers]


def subjects_of(name: str, ids: Sequence[str]) -> list[str]:
    """With each of the ids where one is open."""
    value = getattr(subjects, name)
    patterns = [value] if isinstance(value, str) else [value(each) for each in ids]
    filled = [pattern.replace(">", each).replace("*", each) for pattern in patterns for each in ids]
    return list(dict.fromkeys(filled))


def subjects_of_model(ids: Sequence[str]) -> list[str]:
    """Those of the offline work of the stack's model; a batch's and its requests' with each of the ids."""
    members = {name: getattr(OF_MODEL, name) for name in vars(ModelSubjects) if not name.startswith("_")}
    own = [value for name, value in members.items() if isinstance(value, str) and name != "model"]
    makers = [value for name, value in members.items() if callable(value) and name != "failure"]
    patterns = [*own, *(maker(each) for maker in makers for each in ids)]
    return [pattern.replace("*", each) for pattern in patterns for each in ids]


def all_subjects(ids: Sequence[str]) -> list[str]:
    named = [subject for name in names() for subject in subjects_of(name, ids)]
    return list(dict.fromkeys([*named, *subjects_of_model(ids)]))


def buckets() -> list[str]:
    """The names of all key-value buckets."""
    return [
        value for name, value in vars(subjects).items() if name.endswith("_BUCKET") and value != subjects.OBJECTS_BUCKET
    ]


def listens_to(subscription: str, subject: str) -> bool:
    """Whether a message on the subject comes to the subscription, as NATS matches them."""
    own, others = subscription.split("."), subject.split(".")
    for place, token in enumerate(own):
        if token == ">":
            return len(others) > place
        if place >= len(others) or token not in ("*", others[place]):
            return False
    return len(own) == len(others)


def _is_subject(name: str, value: object) -> bool:
    return isinstance(value, str) and value.startswith(f"{subjects.PREFIX}.")


def _makes_subject(name: str, value: object) -> bool:
    """The ``format`` of a text."""
    return not name.startswith("_") and inspect.isbuiltin(value)
