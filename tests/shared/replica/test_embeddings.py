"""Embeddings of prompts on a replica: each prompt's own, whatever is planned, preempted, shared, ahead, or fails."""

import dataclasses
import random
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from services.executor.engines.sim import SimEngine
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import ENDS_WELL, EmbeddingShape, FinishReason, SamplingParams
from shared.protocol.tokens import TokenOutput
from shared.replica.engine import StepBatch, StepResult
from shared.replica.live_sequences import NO_EMBEDDING
from shared.replica.replica import Replica
from shared.scheduling.limits import Limits
from shared.scheduling.request import Kind
from shared.scheduling.strategy import PRESETS
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.following_engine import FollowingEngine
from tests.shared.replica.test_look_ahead import SPEC, Overlapped, alone, run_at_random
from tests.shared.replica.test_look_ahead import make_request as overlapped_request
from tests.shared.replica.test_prompt_scores import outputs_of
from tests.shared.replica.test_replica import NO_TIME, make_spec


class EmbeddingEngine(FollowingEngine):
    """The embedding of a prompt is the token that would follow it, which depends on every KV slot that it reads."""

    def execute(self, batch: StepBatch) -> StepResult:
        asked = [each.request_id for each in batch.sequences if each.needs_embedding]
        sampling = [
            dataclasses.replace(each, needs_sample=each.needs_sample or each.needs_embedding)
            for each in batch.sequences
        ]
        result = super().execute(dataclasses.replace(batch, sequences=sampling))
        for request_id in asked:
            token_id = result.sampled.pop(request_id, None)
            if token_id is not None:
                result.embeddings[request_id] = token_id.to_bytes(4, "little")
        return result


@dataclass
class OverlappedEmbeddings(Overlapped):
    """That remembers the embeddings of those that have ended well."""

    embeddings: dict[str, bytes | None] = field(default_factory=dict)

    def take_ended(self) -> None:
        for ended in self.replica.take_ended():
            sequence = ended.sequence
            self.outcomes[sequence.request_id] = (sequence.output_token_ids, ended.finish_reason)
            if ended.finish_reason in ENDS_WELL and sequence.sampling.embedding is not None:
                assert (sequence.output_token_ids, ended.finish_reason) == ([], FinishReason.LENGTH)
                self.embeddings[sequence.request_id] = sequence.embedding


def embeds(request: GenerateRequest) -> GenerateRequest:
    sampling = SamplingParams(0, seed=request.sampling.seed, ignore_eos=True, embedding=EmbeddingShape())
    return replace(request, sampling=sampling)


def follows(request: GenerateRequest) -> GenerateRequest:
    """The same prompt, and the token that follows it."""
    return replace(request, sampling=replace(request.sampling, max_tokens=1, embedding=None))


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_steps_ahead_failures_and_preemption_change_no_embedding(tokenizer: Tokenizer, seed: int, breaks: bool) -> None:
    """Beside requests that generate over the same prefixes."""
    rng = random.Random(seed)
    made = [overlapped_request(f"{seed}-{number}", rng) for number in range(50)]
    made = [embeds(each) if rng.random() < 0.6 else each for each in made]
    rates = {"fail": 0.05, "fail_row": 0.01, "interrupt": 0.2} if breaks else {}
    rig = OverlappedEmbeddings(tokenizer, rng, EmbeddingEngine(SPEC, seed=seed, **rates))
    run_at_random(rig, made, abort=0.02)
    expected = alone(tokenizer, [follows(each) for each in made if each.sampling.embedding is not None])
    assert len(rig.embeddings) > 10
    for request_id, embedding in rig.embeddings.items():
        assert embedding is not None and [[int.from_bytes(embedding, "little")]] == expected[request_id][0]
    assert rig.num_ahead > 20 and rig.replica.totals.cached_tokens > 0


@pytest.mark.parametrize("name", PRESETS)
def test_every_strategy_ends_them_with_their_prompts(name: str) -> None:
    spec = replace(make_spec(), num_host_slots=64)
    replica = Replica(Limits(16, 64, 64, 32), spec, None, PRESETS[name])
    for kind in Kind:
        replica.submit(embeds(GenerateRequest(kind.name, kind, list(range(5, 195)), SamplingParams(0), 0.0, "gateway")))
    engine = SimEngine(spec, NO_TIME, 30.0)
    outputs = list(outputs_of(replica, engine)) if PRESETS[name].offline_order else []
    assert {output.request_id for output in outputs} == {kind.name for kind in Kind}
    assert len({output.embedding for output in outputs}) == 1 and outputs[0].embedding
    for output in outputs:
        assert (output.finish_reason, output.token_ids, output.num_output_tokens) == (FinishReason.LENGTH, [], 0)


def test_an_engine_that_gives_none_costs_its_request_alone() -> None:
    spec = make_spec()

    class Silent(SimEngine):
        def execute(self, batch: StepBatch) -> StepResult:
            result = super().execute(batch)
            result.embeddings.clear()
            return result

    replica = Replica(Limits(16, 64, 512, 32), spec, None)
    plain = GenerateRequest("plain", Kind.ONLINE, [5, 6, 7], SamplingParams(3, ignore_eos=True), 0.0, "gateway")
    replica.submit(plain)
    replica.submit(embeds(replace(plain, request_id="embeds")))
    ends: dict[str, TokenOutput] = {}
    for output in outputs_of(replica, Silent(spec, NO_TIME, 30.0)):
        if output.finish_reason is not None:
            ends[output.request_id] = output
    assert (ends["embeds"].finish_reason, ends["embeds"].error) == (FinishReason.ERROR, NO_EMBEDDING)
    assert ends["plain"].finish_reason is FinishReason.LENGTH and ends["plain"].embedding is None
