"""vLLM's ``structured_outputs`` and its older ``guided_*`` fields: what an output keeps to, as a grammar for the
engines."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.openai.errors import RequestError
from shared.openai.fields import check_depth, check_field, check_schemas
from shared.openai.grammars import ANY_OBJECT, encoded, problem_of, schema_grammar
from shared.text.tokenizer import Tokenizer

JsonSchemaText = str | dict[str, Any]
Regex = Annotated[str, Meta(min_length=1)]
ChoiceTexts = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]
GrammarText = Annotated[str, Meta(min_length=1)]
EMBEDDED = re.compile(r"%json\s*")  # a schema follows
LEVEL = re.compile(r"::?|[(\[]")  # what a rule or a group of a grammar begins with; in a text it counts, too
MAX_LEVELS = 1000  # llguidance goes into them by recursion, and ends the process at the end of its stack
MAX_LINES = 4000  # for which it takes a tenth of a second, and for ten times as many a hundred times as long
KINDS = ("json", "regex", "choice", "grammar")
UNSERVED_OPTIONS: dict[str, tuple[Any, ...]] = {
    "disable_additional_properties": (False,),
    "whitespace_pattern": (),
    "structural_tag": (),
}


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """One of ``json``, ``regex``, ``choice``, ``grammar`` and ``json_object`` says what an answer's text has to be.
    JSON never has free white space, whatever ``disable_any_whitespace`` says."""

    json: JsonSchemaText | None = None
    regex: Regex | None = None
    choice: ChoiceTexts | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Constraint:
    """``param``: the field that asks for it; ``kind``: one of KINDS."""

    param: str
    kind: str
    value: Any

    def grammar(self, tokenizer: Tokenizer) -> str:
        """As llguidance reads it. Raises RequestError where nothing could keep to it."""
        if self.kind == "json":
            return schema_grammar(self._schema(), tokenizer, self.param)
        try:
            grammar = self._encoded()
            problem = problem_of(grammar, tokenizer)
        except (ValueError, RecursionError) as error:
            problem = str(error)
        if problem:
            raise RequestError(f"{self.param}: {problem}", self.param, "unsupported_value")
        return grammar

    def _schema(self) -> dict[str, Any]:
        schema = self.value
        if isinstance(schema, str):
            try:
                schema = msgspec.json.decode(schema)
            except (msgspec.DecodeError, RecursionError) as error:
                raise RequestError(f"{self.param} is not valid JSON: {error}", self.param) from error
        if not isinstance(schema, dict):
            raise RequestError(f"{self.param} is no JSON schema; give an object", self.param)
        return schema

    def _encoded(self) -> str:
        from llguidance import LLMatcher, grammar_from  # late: most processes never see a grammar

        encoded(self.value, f"{self.param} is", self.param)
        if self.kind == "choice":
            texts = [msgspec.json.encode(text).decode() for text in self.value]
            return f"start: {' | '.join(texts)}\n"
        if self.kind == "regex":
            regex: str = LLMatcher.grammar_from_regex(self.value)
            return regex
        schemas = list(_schemas_in(self.value))
        for schema in schemas:
            check_depth(self.param, schema)
        check_schemas(self.param, *schemas)
        if len(LEVEL.findall(self.value)) > MAX_LEVELS or self.value.count("\n") > MAX_LINES:
            what = f"{MAX_LEVELS} rules and groups, or {MAX_LINES} lines"
            raise RequestError(f"{self.param} has more than {what}", self.param)
        return grammar_from("grammar", self.value)


def _schemas_in(grammar: str) -> Iterator[Any]:
    """Those that a grammar has in it. Raises ValueError and RecursionError where one cannot be read."""
    for place in EMBEDDED.finditer(grammar):
        yield _decoder.raw_decode(grammar, place.end())[0]


def constraint_of(fields: Any) -> Constraint | None:
    """What the body of a completion asks for; None for any text. Raises RequestError for more than one, and for options
    that are not served."""
    asked: StructuredOutputs | None = fields.structured_outputs
    if asked is not None:
        for name, accepted in UNSERVED_OPTIONS.items():
            check_field(f"structured_outputs.{name}", getattr(asked, name), accepted)
    found = [*_structured(asked), *_guided(fields)]
    if len(found) > 1:
        message = f"{found[1].param} does not go with {found[0].param}: an answer keeps to one of them"
        raise RequestError(message, found[1].param)
    return found[0] if found else None


def _structured(asked: StructuredOutputs | None) -> Iterator[Constraint]:
    for kind in KINDS:
        value = getattr(asked, kind, None)
        if value is not None:
            yield Constraint(f"structured_outputs.{kind}", kind, value)
    if asked is not None and asked.json_object:
        yield Constraint("structured_outputs.json_object", "json", ANY_OBJECT)


def _guided(fields: Any) -> Iterator[Constraint]:
    for kind in KINDS:
        value = getattr(fields, f"guided_{kind}")
        if value is not None:
            yield Constraint(f"guided_{kind}", kind, value)
