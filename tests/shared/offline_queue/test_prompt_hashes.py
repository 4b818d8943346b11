"""The hashes of requests' blocks, asked for in any order, against those that are made anew each time."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.offline_queue import prompt_hashes
from shared.offline_queue.prompt_hashes import PromptHashes
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.kv.block_hash import KVScope, prompt_chain
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind

BLOCK = 2
IDS = [f"{kind.name}-{number}" for kind in Kind for number in range(4)]
tokens = st.lists(st.integers(0, 9), max_size=7)
known = st.tuples(tokens, tokens, st.sampled_from([None, 0]), st.sampled_from(["", "sql"]))


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_hashes, "MAX_OFFLINE", 2)


class Asked:
    """The offline requests' packed prompts, and how often each was asked for."""

    def __init__(self) -> None:
        self.prompts: dict[str, tuple[bytes, KVScope]] = {}
        self.asked: list[str] = []

    def __call__(self, request_id: str) -> tuple[bytes, KVScope] | None:
        self.asked.append(request_id)
        return self.prompts.get(request_id)


def chains(made: dict[str, tuple[list[int], list[int], int | None, str]]) -> Iterator[tuple[str, list[bytes]]]:
    """What an online request has generated counts, too, unless its prompt is scored."""
    for request_id, (prompt, output, num_top, adapter) in made.items():
        is_whole = request_id.startswith("ONLINE") and num_top is None
        yield request_id, prompt_chain([*prompt, *(output if is_whole else [])], BLOCK, KVScope(num_top, adapter))


@settings(max_examples=30)
@given(
    made=st.fixed_dictionaries(dict.fromkeys(IDS[1:-1], known)),
    done=st.lists(st.tuples(st.booleans(), st.sampled_from(IDS)), min_size=8),
)
def test_hashes_are_those_of_what_is_known(
    made: dict[str, tuple[list[int], list[int], int | None, str]], done: list[tuple[bool, str]]
) -> None:
    """Until it is forgotten, and again where it is known again."""
    asked, expected = Asked(), dict(chains(made))
    hashes = PromptHashes(BLOCK, asked)

    def add(request_id: str) -> None:
        prompt, output, num_top, adapter = made[request_id]
        sampling = SamplingParams(3, prompt_logprobs=num_top, adapter=adapter)
        if request_id.startswith("ONLINE"):
            request = GenerateRequest(request_id, Kind.ONLINE, prompt, sampling, 0.0, output_token_ids=output)
            hashes.add(request)
        else:
            asked.prompts[request_id] = pack_tokens(prompt), KVScope(num_top, adapter)

    for request_id in made:
        add(request_id)
    for is_asked, request_id in done:
        if is_asked:
            assert list(hashes.of(request_id)) == expected.get(request_id, [])
            continue
        asked.prompts.pop(request_id, None)
        hashes.forget(request_id)
        assert list(hashes.of(request_id)) == []
        if request_id in made:
            add(request_id)


def test_hashes_are_made_once_and_of_offline_requests_those_of_the_last_few_are_kept() -> None:
    asked = Asked()
    hashes = PromptHashes(BLOCK, asked)
    for number in range(3):
        asked.prompts[f"off-{number}"] = pack_tokens([number] * 4), KVScope()
    hashes.add(GenerateRequest("on", Kind.ONLINE, [1, 2, 3, 4], SamplingParams(3), 0.0))
    for request_id in ("off-0", "off-1", "off-0", "on", "off-2", "on", "off-1", "off-2", "off-0"):
        assert len(hashes.of(request_id)) == 2
    assert asked.asked == ["off-0", "off-1", "off-2", "off-0"], "the first was let go for the third"
    assert hashes.of("on") is hashes.of("on")
