"""Outputs that keep to a grammar: with made-up logits, where nothing but the grammar makes sense of them."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import msgspec
import pytest
import torch

from services.executor.engines.sampling.grammar_masks import GrammarMasks
from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.sampler import sample
from shared.openai.grammars import ResponseFormat, grammar_of
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import TokenHistory
from shared.text.model_folder import ModelFacts
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.engine_prompts import PERSON

PROMPT = [1, 2, 3]


def grammar_for(tokenizer: Tokenizer, schema: dict[str, Any] | None) -> str:
    """None is any JSON object."""
    asked: dict[str, Any] = {"type": "json_object"}
    if schema is not None:
        asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    return grammar_of(msgspec.json.decode(json.dumps(asked), type=ResponseFormat), tokenizer)


@dataclass
class Output:
    """One request. Its logits are noise, the same for a place whatever else runs."""

    request_id: str
    sampling: SamplingParams
    output: list[int] = field(default_factory=list)

    def logits(self, vocab_size: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.sampling.seed * 1000 + len(self.output))
        return torch.randn(vocab_size, generator=generator)

    def row(self) -> SampleRow:
        tokens = PROMPT + self.output
        history = TokenHistory(tokens, len(PROMPT)) if self.sampling.adjusts_logits else None
        return SampleRow(self.sampling, len(tokens), history, self.request_id)


@pytest.fixture(scope="module")
def facts(model_folder: Path) -> ModelFacts:
    return ModelFacts.read(model_folder)


@pytest.fixture
def masks(model_folder: Path) -> Iterator[GrammarMasks]:
    made = GrammarMasks(model_folder)
    yield made
    made.close()


def test_the_vocabulary_is_read_before_the_first_grammar_comes(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it would hold up a step of all that an engine runs."""
    has_begun = threading.Event()
    monkeypatch.setattr(llguidance, "LLTokenizer", lambda *arguments: has_begun.set())
    made = GrammarMasks(model_folder)
    assert has_begun.wait(60)
    made.close()


def has_ended(each: Output, facts: ModelFacts) -> bool:
    return bool(each.output) and each.output[-1] in facts.eos_token_ids


def step(outputs: list[Output], masks: GrammarMasks, facts: ModelFacts) -> None:
    """One token more for each that has not ended."""
    going = [each for each in outputs if not has_ended(each, facts)]
    logits = torch.stack([each.logits(facts.vocab_size) for each in going])
    for each, token in zip(going, sample(logits, [each.row() for each in going], masks), strict=True):
        each.output.append(token)


def persons(tokenizer: Tokenizer, count: int) -> list[Output]:
    grammar = grammar_for(tokenizer, PERSON)
    return [
        Output(f"r{n}", SamplingParams(400, n % 3 * 0.7, seed=n, top_k=n % 2 * 500, grammar=grammar))
        for n in range(count)
    ]


def run(outputs: list[Output], masks: GrammarMasks, facts: ModelFacts, steps: int = 200) -> list[list[int]]:
    for _ in range(steps):
        if all(has_ended(each, facts) for each in outputs):
            break
        step(outputs, masks, facts)
    return [each.output for each in outputs]


def test_noise_becomes_what_the_schema_asks_for(tokenizer: Tokenizer, masks: GrammarMasks, facts: ModelFacts) -> None:
    """Rows without a grammar draw beside them what they draw alone."""
    plain = [Output(f"p{n}", SamplingParams(400, 1.0, seed=100 + n)) for n in range(3)]
    outputs = persons(tokenizer, 6)
    run([*outputs, *plain], masks, facts, 30)
    run(outputs, masks, facts)
    for each in outputs:
        assert each.output[-1] in facts.eos_token_ids, tokenizer.decode(each.output)
        jsonschema.validate(json.loads(tokenizer.decode(each.output)), PERSON)
    assert len({tokenizer.decode(each.output) for each in outputs}) == 6
    alone = [Output(each.request_id, each.sampling) for each in plain]
    run(alone, masks, facts, 30)
    assert [each.output for each in plain] == [each.output for each in alone]


def test_a_tokenizer_may_have_tokens_beyond_the_models(
    tokenizer: Tokenizer, model_folder: Path, tmp_path: Path
) -> None:
    for file in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((model_folder / file).read_bytes())
    config = json.loads((tmp_path / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": tokenizer.vocab_size - 2}))
    masks = GrammarMasks(tmp_path)
    for output in run(persons(tokenizer, 2), masks, ModelFacts.read(tmp_path)):
        jsonschema.validate(json.loads(tokenizer.decode(output)), PERSON)
    masks.close()


def test_a_matcher_is_made_again_from_the_tokens(
    tokenizer: Tokenizer, model_folder: Path, masks: GrammarMasks, facts: ModelFacts
) -> None:
    """Elsewhere, later, after another request of the same id: the tokens are those of an undisturbed run."""
    expected = run(persons(tokenizer, 4), masks, facts)
    others = [Output(each.request_id, each.sampling) for each in reversed(persons(tokenizer, 4))]
    run(others, masks, facts, 7)
    outputs = persons(tokenizer, 4)
    run(outputs, masks, facts, 11)
    elsewhere = GrammarMasks(model_folder)
    run(outputs, elsewhere, facts, 5)
    any_object = Output("r1", SamplingParams(9, seed=5, grammar=grammar_for(tokenizer, None)))
    run([any_object], masks, facts, 3)
    assert run(outputs, masks, facts) == expected
    elsewhere.close()
    assert tokenizer.decode(any_object.output).startswith("{")


def test_the_end_may_come_only_where_the_grammar_ends(
    tokenizer: Tokenizer, masks: GrammarMasks, facts: ModelFacts
) -> None:
    ends = list(facts.eos_token_ids)
    grammar = grammar_for(tokenizer, {"enum": [7, 77]})
    for text, may_end, may_go_on in (("", False, True), ("7", True, True), ("77", True, False)):
        each = Output("r", SamplingParams(9, grammar=grammar), tokenizer.encode(text))
        (allowed,) = masks.allowed([each.row()], facts.vocab_size)
        assert {bool(allowed[token_id]) for token_id in ends} == {may_end}
        allowed[ends] = False
        assert allowed.any() == may_go_on
        assert all(tokenizer.decode([token_id]) for token_id in allowed.nonzero()[0].tolist()), (
            "special ones have no text"
        )


def test_what_no_grammar_allows_may_only_end(
    tokenizer: Tokenizer, masks: GrammarMasks, facts: ModelFacts, caplog: pytest.LogCaptureFixture
) -> None:
    """An output that another version of the grammar has begun, say."""
    each = Output("r", SamplingParams(9, grammar=grammar_for(tokenizer, {"enum": [7]})), tokenizer.encode("seven"))
    step([each], masks, facts)
    assert each.output[-1] in facts.eos_token_ids
    assert [record.message for record in caplog.records] == ["grammar broken off"]


def test_penalties_and_biases_do_not_break_it(tokenizer: Tokenizer, masks: GrammarMasks, facts: ModelFacts) -> None:
    (comma,) = tokenizer.encode(",")
    options: dict[str, Any] = {"repetition_penalty": 2.0, "frequency_penalty": 2.0, "logit_bias": ((comma, 100.0),)}
    sampling = SamplingParams(400, 0.0, seed=3, grammar=grammar_for(tokenizer, PERSON), **options)
    (output,) = run([Output("r", sampling)], masks, facts)
    jsonschema.validate(json.loads(tokenizer.decode(output)), PERSON)


def test_answers_are_written_without_free_whitespace(tokenizer: Tokenizer) -> None:
    """Else a small model writes blanks until its tokens are used up."""
    from llguidance import LLMatcher

    text = json.dumps({"name": "A", "age": 3, "likes": ["tea", "tea"], "home": None})
    for written, is_whole in ((text, True), (text.replace(", ", ",\n"), False), (re.sub(r"\s", "", text), False)):
        matcher = LLMatcher(tokenizer.for_grammars, grammar_for(tokenizer, PERSON))
        token_ids = tokenizer.encode(written)
        assert (matcher.try_consume_tokens(token_ids) == len(token_ids)) == is_whole
