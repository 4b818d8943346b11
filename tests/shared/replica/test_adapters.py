"""Requests with LoRA adapters: none finds the KV of another's, and none runs where its adapter is not."""

import random
from collections.abc import Callable
from itertools import combinations, pairwise, product

import msgspec
import pytest
from msgspec.structs import replace

from services.executor.engines.sim import SimEngine
from shared.clock import SystemClock
from shared.offline_queue.offline_pool import PackedRequest
from shared.offline_queue.prompt_hashes import PromptHashes
from shared.offline_queue.scheduler import Scheduler, why_never_held_by_any
from shared.protocol.codec import decode, encode
from shared.protocol.executors import EngineSpec
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.replica.engine import StepBatch, StepResult
from shared.replica.replica import Replica
from shared.replica.sequence import LiveSequence
from shared.scheduling.kv.block_hash import KVScope, hash_chain, prompt_chain
from shared.scheduling.limits import Limits
from shared.scheduling.packed_prompt import marked, pack_tokens
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.strategy import PRESETS
from shared.text.tokenizer import Tokenizer
from tests.shared.offline_queue.test_scheduler import make_offline, make_pool
from tests.shared.replica.factories import make_info
from tests.shared.replica.test_handover import held_at, make_rig, request_of
from tests.shared.replica.test_replica import MODEL, NO_TIME, make_request, make_spec

NAMES = ("", "sql", "chat")
PROMPT = list(range(5, 105))


class OwnedKV(SimEngine):
    """Knows with which adapter each block was written, and lets nobody else read it."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec, NO_TIME, 30.0)
        self.owners: dict[int, str] = {}
        self.num_read = 0

    def execute(self, batch: StepBatch) -> StepResult:
        for sequence in batch.sequences:
            first = sequence.num_computed_tokens // self.spec.block_size
            read = sequence.block_table[: -(-sequence.num_computed_tokens // self.spec.block_size)]
            assert all(self.owners[block] == sequence.sampling.adapter for block in read)
            self.num_read += len(read)
            self.owners |= dict.fromkeys(sequence.block_table[first:], sequence.sampling.adapter)
        return super().execute(batch)


def adapted(request: GenerateRequest, adapter: str) -> GenerateRequest:
    return replace(request, sampling=replace(request.sampling, adapter=adapter))


def owned(request: GenerateRequest, owner: str) -> GenerateRequest:
    return replace(request, sampling=replace(request.sampling, kv_owner=owner))


def test_chains_of_different_scopes_never_meet() -> None:
    scopes = [KVScope(*each) for each in product((None, 0, 1), NAMES, ("", "key-alice", "key-bob"))]
    chains = [set(prompt_chain(PROMPT, 16, scope)) for scope in scopes]
    assert all(len(chain) == 6 for chain in chains)
    assert not any(one & other for one, other in combinations(chains, 2))
    assert prompt_chain(PROMPT, 16, KVScope()) == hash_chain(PROMPT, 16), "without an adapter as ever"
    assert prompt_chain(PROMPT, 16, KVScope(None, "sql")) == prompt_chain(pack_tokens(PROMPT), 16, KVScope(None, "sql"))


@pytest.mark.parametrize("num_top", [None, 1])
@pytest.mark.parametrize("kind", list(Kind))
def test_executor_and_scheduler_know_blocks_by_the_same_hashes(kind: Kind, num_top: int | None) -> None:
    for name in NAMES:
        request = make_request("a", 100, kind=kind, adapter=name, prompt_logprobs=num_top)
        pool = make_pool("psm", [])
        hashes = PromptHashes(16, pool.scoped_prompt)
        if kind is Kind.ONLINE:
            hashes.add(request)
        else:
            pool.enter(request)
        sequence = LiveSequence.admit(request, make_spec(), None)
        assert list(hashes.of("a")) == sequence.block_hashes(16)
        sequence.token_ids += range(7, 40)
        if num_top is None:
            assert sequence.block_hashes(16) == prompt_chain(sequence.token_ids, 16, KVScope(None, name))


@pytest.mark.parametrize("preset", ["hygen", "echo"])
@pytest.mark.parametrize("seed", range(3))
def test_no_kv_is_read_with_another_adapter(tokenizer: Tokenizer, preset: str, seed: int) -> None:
    """The same prompts with each, with few blocks, so that many lose their KV and find some again."""
    rng = random.Random(seed)
    spec = replace(make_spec(24), adapters=NAMES[1:])
    replica, engine = Replica(Limits(16, 24, 64, 8), spec, tokenizer, PRESETS[preset]), OwnedKV(spec)
    requests = []
    for number in range(36):
        kind, prompt = rng.choice(list(Kind)), rng.choice((20, 70, 120))
        made = make_request(f"r{number}", prompt, rng.choice((1, 20)), kind, ignore_eos=True, adapter=NAMES[number % 3])
        requests.append(made)
        replica.submit(made)
    outputs = {}
    while replica.has_work:
        batch = replica.begin(replica.schedule(None, Policy(), MODEL), 0)
        assert batch.sequences
        replica.finish(engine.execute(batch))
        replica.pool.check_integrity()
        for ended in replica.take_ended():
            assert ended.finish_reason is FinishReason.LENGTH
            outputs[ended.sequence.request_id] = ended.sequence.output_token_ids
    assert replica.totals.cached_tokens > 0 < engine.num_read
    assert len(outputs) == len(requests)
    for request in requests[:9]:
        assert outputs[request.request_id] == expected(spec, tokenizer, request)


def expected(spec: EngineSpec, tokenizer: Tokenizer, request: GenerateRequest) -> list[int]:
    engine, replica = OwnedKV(spec), Replica(Limits(16, 512, 512, 32), spec, tokenizer)
    replica.submit(request)
    while replica.has_work:
        replica.finish(engine.execute(replica.begin(replica.schedule(None, Policy(), MODEL), 0)))
    (ended,) = replica.take_ended()
    return ended.sequence.output_token_ids


def test_one_that_is_not_loaded_ends_its_request(tokenizer: Tokenizer) -> None:
    spec = replace(make_spec(), adapters=("sql",))
    replica = Replica(Limits(16, 64, 64, 32), spec, tokenizer)
    replica.submit(make_request("a", adapter="chat"))
    replica.submit(make_request("b", adapter="sql"))
    (ended,) = replica.take_ended()
    assert (ended.sequence.request_id, ended.error) == ("a", "the adapter 'chat' is not loaded here")
    assert replica.has_work


def test_none_moves_to_who_lacks_its_adapter(tokenizer: Tokenizer) -> None:
    giver, taker = make_rig(tokenizer), make_rig(tokenizer)
    (carried,) = held_at(giver, request_of("a", Kind.ONLINE))
    moved = replace(carried, request=adapted(carried.request, "sql"))
    assert taker.replica.handovers.reserve(moved) == "the adapter 'sql' is not loaded here"


@pytest.mark.parametrize(("name", "owner"), list(product(("", "sql"), ("", "key-alice"))))
def test_a_waiting_request_is_kept_as_it_is(name: str, owner: str) -> None:
    request = owned(make_request("a", 33, kind=Kind.OFFLINE, adapter=name), owner)
    packed = PackedRequest.of(request)
    assert packed.unpack() == request and packed.scope == KVScope(None, name, owner)
    assert packed.scope is PackedRequest.of(replace(request, request_id="b")).scope, "one for all of them"
    assert (packed.prompt == pack_tokens(request.prompt_token_ids)) is not bool(name or owner)
    assert marked(marked(packed.prompt, "chat"), "chat") == packed.prompt
    assert marked(b"", "sql") == b""


@pytest.mark.parametrize("order", ["psm", "psm-fair", "kv-aware", "blend"])
@pytest.mark.parametrize("parted", [adapted, owned])
def test_who_shares_a_prompt_but_no_scope_is_no_neighbour(
    order: str, parted: Callable[[GenerateRequest, str], GenerateRequest]
) -> None:
    """Of twelve requests with one prompt, those of each adapter, or owner, stand together."""
    pool = make_pool(order, [], utility_ratio=1.0)
    for number in range(12):
        pool.enter(parted(make_offline(number, prompt=64).request, NAMES[number % 3]))
    scopes = [pool.request(request.request_id).sampling.kv_scope for request in pool.in_order()]
    changes = sum(one != other for one, other in pairwise(scopes))
    assert len(scopes) == 12 and changes == 2
    demand = pool.demand(16)
    demand.catch_up(12)
    for scope in scopes:
        assert demand.runs(marked(pack_tokens(range(64)), scope.group)) == [(4, 4)], "only they read these blocks"
    pool.check_integrity()


def test_a_request_of_the_pool_waits_for_an_executor_with_its_adapter() -> None:
    pool = make_pool("psm", [])
    pool.enter(adapted(make_offline(0).request, "sql"))
    pool.enter(make_offline(1).request)
    infos = (make_info(), make_info(executor_id="executor-1", adapters=("sql",)))
    plain, with_it = (Scheduler(info, pool, lambda: (Policy(), MODEL), SystemClock(), lambda _: "") for info in infos)
    first, second = (pool.request(f"batch_1.{number}") for number in range(2))
    waiting = {request.request_id: request for request in pool.in_order()}
    assert plain.why_never_held(waiting[first.request_id]) == "the adapter 'sql' is not loaded here"
    assert plain.why_never_held(waiting[second.request_id]) == with_it.why_never_held(waiting[first.request_id]) == ""
    assert why_never_held_by_any(waiting[first.request_id], (plain, with_it)) == ""
    assert why_never_held_by_any(waiting[first.request_id], (plain,)) == "the adapter 'sql' is not loaded here"


def test_messages_of_the_version_before_are_read_and_its_readers_read_ours() -> None:
    class OldSampling(msgspec.Struct, omit_defaults=True):
        max_tokens: int
        temperature: float = 1.0

    assert b"adapter" not in encode(SamplingParams(3)), "nothing is said of none"
    assert decode(encode(SamplingParams(3, adapter="sql")), OldSampling).max_tokens == 3
    assert decode(encode(OldSampling(3)), SamplingParams).adapter == ""
    spec = msgspec.to_builtins(make_spec())
    del spec["adapters"]
    assert msgspec.convert(spec, EngineSpec).adapters == ()
