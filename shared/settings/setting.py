"""One setting of a process, as its settings struct declares it.

A field ``kv_blocks: Annotated[int, Meta(ge=0, description="...")] = 0`` is a setting; a field without a description is
none. Where a struct takes a setting over from another one, the field names that one instead of repeating what is said
there: ``kv_blocks: Annotated[int, ExecutorSettings]``. A field that is a struct of settings itself is a table of its
own, by the field's name. ``Meta(extra=choices(...))`` lists the known values, ``extra=LIST`` marks a text that several
values with commas between them make up, ``extra=SECRET`` one that is not shown, ``extra=BASE`` the one of a table that
the others have their defaults from. ``NatsUrl`` and the like, and ``LogLevel``, are settings
that several services have.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

ENV_PREFIX = "SLACKWATER_"
LIST = {"list": True}
SECRET = {"secret": True}
BASE = {"base": True}
SEPARATOR = ","
MAX_SHOWN = 200  # characters of a value that is refused


def listed(value: str) -> list[str]:
    """The values of a setting that has several, without the white space around each."""
    return [each.strip() for each in value.split(SEPARATOR) if each.strip()]


def choices(known: Iterable[str]) -> dict[str, Any]:
    """For ``Meta(extra=...)``: the values that there are."""
    return {"choices": tuple(known)}


NatsUrl = Annotated[
    str,
    Meta(description="URL of the NATS server: nats://, or tls:// with encryption; of a cluster several, with commas"),
]
NatsCreds = Annotated[
    str,
    Meta(description="NKey seed or .creds file to be let in with, or a folder with one for each role: gateway.nk, ..."),
]
NatsCa = Annotated[
    str,
    Meta(
        description="PEM file of who signs the server's certificate; empty: ca.pem beside nats_creds, or the system's"
    ),
]
NatsReplicas = Annotated[
    str,
    Meta(
        description="copies of all that the bus stores, each on a server of its own; auto: 3 where its cluster has so "
        "many servers, else 1",
        extra=choices(("auto", "1", "3", "5")),
    ),
]
TraceEndpoint = Annotated[
    str,
    Meta(
        description="OTLP collector that spans go to, as http://localhost:4318/v1/traces; empty: none are made",
        pattern="^(https?://.+)?$",
    ),
]
LogLevel = Annotated[
    str, Meta(description="debug, info, warning or error", extra=choices(("debug", "info", "warning", "error")))
]


@dataclass(frozen=True, slots=True)
class Setting:
    """``default`` is ``msgspec.NODEFAULT`` where a value must be given; ``table``: where it is not the struct's own."""

    name: str
    hint: Any  # the type, annotated with ``meta``
    meta: Meta
    default: Any
    table: str = ""

    @property
    def description(self) -> str:
        return self.meta.description or ""

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Of the environment."""
        return ENV_PREFIX + self.name.upper()

    @property
    def choices(self) -> tuple[str, ...]:
        """The known values; empty where they are not listed."""
        return tuple((self.meta.extra or {}).get("choices", ()))

    @property
    def explanation(self) -> str:
        """The description, and the known values where it does not name them itself."""
        named = all(known in self.description for known in self.choices)
        return self.description if named else f"{self.description}; known: {', '.join(self.choices)}"

    @property
    def default_text(self) -> str:
        """Empty where there is none."""
        if self.required:
            return ""
        if self.is_by_base:
            return "as of the preset"
        return f"{self.default:g}" if self.type is float else str(self.default)

    @property
    def is_by_base(self) -> bool:
        """Its default depends on another setting of its table."""
        return bool(self.table) and not (self.meta.extra or {}).get("base")

    @property
    def is_list(self) -> bool:
        return bool((self.meta.extra or {}).get("list"))

    @property
    def is_secret(self) -> bool:
        return bool((self.meta.extra or {}).get("secret"))

    @property
    def type(self) -> type:
        """Without None: int, float, str, bool or Path."""
        plain = get_args(self.hint)[0]
        found: type = plain if get_origin(plain) is None else get_args(plain)[0]
        return found

    def convert(self, raw: Any, strict: bool) -> Any:
        """The value. Not ``strict``: numbers and booleans may be text. Raises ValueError in words."""
        if self.is_list and isinstance(raw, list | tuple):
            raw = SEPARATOR.join(str(part) for part in raw)
        if self.type is Path and raw == "":
            raise ValueError("it is empty; name a folder, . for the current one")
        try:
            value = msgspec.convert(raw, self.hint, strict=strict, dec_hook=lambda kind, given: kind(given))
        except msgspec.ValidationError as error:
            raise ValueError(str(error) if self.is_secret else f"{error} (it is {_shown(raw)})") from error
        if self.choices and value not in self.choices:
            known = ", ".join(self.choices)
            raise ValueError(f"unknown {self.name.replace('_', ' ')} {_shown(value)}; known: {known}")
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def settings_of(struct: type[msgspec.Struct]) -> list[Setting]:
    """In the order of the fields."""
    hints = get_type_hints(struct, include_extras=True)
    found = []
    for field in msgspec.structs.fields(struct):
        if is_table(hints[field.name]):
            found += [replace(each, table=field.name) for each in settings_of(hints[field.name])]
            continue
        declared = _declared(field.name, hints[field.name])
        if declared is not None:
            found.append(Setting(field.name, *declared, field.default))
    return found


def is_table(hint: Any) -> bool:
    """A struct of settings, as the type of a field."""
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def default_of(struct: type[msgspec.Struct], name: str) -> Any:
    """What the struct has where nothing is given. Raises KeyError for a name that it does not have."""
    return {field.name: field.default for field in msgspec.structs.fields(struct)}[name]


def _declared(name: str, hint: Any) -> tuple[Any, Meta] | None:
    """The hint with its meta, or that of the field of the same name in the struct that it names; None for no
    setting."""
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, Meta):
            return hint, extra
        if isinstance(extra, type) and issubclass(extra, msgspec.Struct):
            return _declared(name, get_type_hints(extra, include_extras=True)[name])
    return None
