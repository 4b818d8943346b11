"""What OpenAI's requests have in common, and fields that no body has: without effect on an answer, or refused, never
silently dropped."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import lcm
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from shared.openai.errors import RequestError, decode_body

FLEX = "flex"  # a single offline request
DEFAULT = "default"
AskedTier = Literal["auto", "default", "fast", "flex", "priority", "scale"]

NAME = r"^[A-Za-z0-9_-]{1,64}$(?!\n)"  # of a function or a schema; in Python alone $ is also before a last newline
MAX_ITEMS = 50_000  # of all lists of a schema together
MAX_REMAINDERS = 20_000  # by what numbers of a schema have to be multiples of
MAX_DIGITS = 64  # of such a number that are looked at: no grammar takes so many
MAX_REFERRED_LEVELS = 1500  # of what a schema refers to
MAX_DEPTH = 100  # of a schema, and of a call's arguments
MAX_SHOWN_NAME = 64  # characters

# OpenAI's limits of what clients attach to their requests.
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]

# How prompts are cached, requests are told apart, and when and in what portions answers come.
IGNORED = (
    *("prompt_cache_options", "prompt_cache_retention", "chat_id"),  # the last is Open WebUI's
    *("priority", "request_id", "session_id", "stream_interval"),  # vLLM's
    "guided_decoding_backend",  # the same
)
IGNORED_COMPLETION = (*IGNORED, "store", "prompt_cache_key", "safety_identifier")  # a response repeats them

# vLLM's own fields with what they are by default.
REFUSED: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "spaces_between_special_tokens": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_token_offsets": (False,),
    "return_mm_kwargs": (False,),
    "mm_payload": ("tensors", "none"),
    "routed_experts_prompt_start": (0,),
    "thinking_token_budget": (-1,),
}


@dataclass(frozen=True)
class OtherFields:
    """Of one endpoint, fields that its body has not. Null and what is empty ask for nothing; what is in neither table
    is refused with any other value."""

    ignored: tuple[str, ...]  # without effect on the text
    refused: Mapping[str, tuple[Any, ...]]  # but for these values, which ask for nothing


CHAT_FIELDS = OtherFields(
    IGNORED_COMPLETION,
    REFUSED
    | {
        "functions": (),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "moderation": (),
        "return_prompt_text": (False,),
        "verbosity": ("medium",),
    },
)
TEXT_FIELDS = OtherFields(
    (*IGNORED_COMPLETION, "include_reasoning"),
    {name: values for name, values in REFUSED.items() if name != "echo"} | {"suffix": ()},
)
RESPONSE_FIELDS = OtherFields(
    (*IGNORED, "max_tool_calls", "stream_options", "include_reasoning"),
    REFUSED
    | {
        "min_tokens": (0,),
        "skip_special_tokens": (True,),
        "include_stop_str_in_output": (False,),
        "background": (False,),
        "conversation": (),
        "context_management": (),
        "include": (["reasoning.encrypted_content"],),  # reasoning is there in plain
        "moderation": (),
        "prompt": (),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    },
)
EMBEDDING_FIELDS = OtherFields(
    IGNORED,
    {
        "add_special_tokens": (True,),
        "truncate_prompt_tokens": (),
        "normalize": (True,),
        "use_activation": (True,),
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
    },
)

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_value_decoder = msgspec.json.Decoder(Any)


def read_fields(body: bytes, served: Collection[str], others: OtherFields) -> dict[str, msgspec.Raw]:
    """All fields of a body by name. Raises RequestError for the first that is neither ``served`` nor without effect,
    or not with its value."""
    fields, taken = decode_body(body, _fields_decoder), (*served, *others.ignored)
    for name, value in fields.items():
        if name not in taken:
            check_field(name, decode_body(value, _value_decoder), others.refused.get(name, ()))
    return fields


def check_field(name: str, value: Any, accepted: tuple[Any, ...]) -> None:
    """Raises RequestError where the value is not null, empty, or one of those ``accepted``; an object's nulls are as
    absent."""
    if isinstance(value, dict):
        value = {key: each for key, each in value.items() if each is not None}
    if value in (None, "", [], {}) or any(
        value == good and isinstance(value, bool) == isinstance(good, bool) for good in accepted
    ):
        return
    name = name[:MAX_SHOWN_NAME]
    if not accepted:
        raise RequestError(f"{name} is not supported; leave it out", name, "unsupported_parameter")
    allowed = " or ".join(msgspec.json.encode(good).decode() for good in accepted)
    hint = f"leave it out or set it to {allowed}"
    raise RequestError(f"{name} is not supported with this value; {hint}", name, "unsupported_value")


def check_schemas(name: str, *schemas: Any) -> None:
    """That they are within all bounds but that of ``check_depth``, which is to be asked before. Raises RequestError."""
    check_items(name, *schemas)
    check_multiples(name, *schemas)
    for schema in schemas:
        check_references(name, schema)


def check_items(name: str, *schemas: Any) -> None:
    """How many items its lists may have together: a grammar has a rule for each, and memory with them. Raises
    RequestError."""
    num_items = 0.0
    for value in _objects_in(schemas):
        bounds = [value.get(bound) for bound in ("minItems", "maxItems")]
        num_items += max((each for each in bounds if isinstance(each, int | float)), default=0)
    if num_items > MAX_ITEMS:
        raise RequestError(f"{name}: minItems and maxItems come to more than {MAX_ITEMS} in all", name)


def check_multiples(name: str, *schemas: Any) -> None:
    """How many remainders there are by what its numbers have to be multiples of, all together: a grammar has a state
    for each, and is compiled for seconds where they are a million. Raises RequestError."""
    num_remainders = 1
    for value in _objects_in(schemas):
        num_remainders = lcm(num_remainders, _remainders(value.get("multipleOf")))
        if num_remainders > MAX_REMAINDERS:
            raise RequestError(f"{name}: multipleOf leaves more than {MAX_REMAINDERS} remainders in all", name)


def check_references(name: str, schema: Any) -> None:
    """How many levels there are in what it refers to, all together: llguidance goes from one into the other by
    recursion, and ends the process at the end of its stack. Raises RequestError."""
    references = dict.fromkeys(ref for each in _objects_in([schema]) if isinstance(ref := each.get("$ref"), str))
    targets = [_target(schema, reference) for reference in references]
    if sum(map(_levels, {id(target): target for target in targets}.values())) > MAX_REFERRED_LEVELS:
        raise RequestError(f"{name} refers to definitions of more than {MAX_REFERRED_LEVELS} levels in all", name)


def _target(schema: Any, reference: str) -> Any:
    """None where there is nothing; all of the schema where it is not referred to by its place."""
    if not reference.startswith("#/"):
        return schema
    found = schema
    for part in unquote(reference[2:]).split("/"):
        if isinstance(found, list):
            found = dict(zip(map(str, range(len(found))), found, strict=True))
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _levels(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(_levels, children), default=0)


def _remainders(multiple: Any) -> int:
    """Of its digits, without the factors 2 and 5: whether a number is a multiple of these its last digits tell."""
    if not isinstance(multiple, int | float):
        return 1
    digits = Decimal(multiple if isinstance(multiple, int) else repr(multiple)).as_tuple().digits
    rest = int("".join(map(str, digits[:MAX_DIGITS])))
    for factor in (2, 5):
        while rest and rest % factor == 0:
            rest //= factor
    return max(1, rest)


def _objects_in(schemas: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Of each and what is in it, however deep."""
    left = list(schemas)
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
            left += value.values()
        elif isinstance(value, list):
            left += value


def check_depth(name: str, value: Any, levels: int = MAX_DEPTH) -> None:
    """Raises RequestError where arrays and objects are nested too deeply for those who work on them."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        if not levels:
            raise RequestError(f"{name} is nested more than {MAX_DEPTH} levels deep", name)
        check_depth(name, child, levels - 1)
