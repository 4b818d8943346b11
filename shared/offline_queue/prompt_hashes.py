"""The block hashes of requests whose tokens a scheduler has seen."""

from collections.abc import Callable, Sequence

from shared.protocol.requests import GenerateRequest
from shared.scheduling.kv.block_hash import KVScope, prompt_chain

SLACK = 64  # requests
MAX_OFFLINE = 4096  # requests whose hashes are kept: those that run, and those that are looked at next


class PromptHashes:
    """Made when they are first asked for: of most requests that wait nobody asks."""

    def __init__(self, block_size: int, packed_prompt: Callable[[str], tuple[bytes, KVScope] | None]) -> None:
        """``packed_prompt``: of an offline request by its id, with its scope; None where it is not known."""
        self._block_size = block_size
        self._packed_prompt = packed_prompt
        self._online: dict[str, tuple[list[int], KVScope]] = {}  # tokens of those whose hashes nobody has asked for
        self._online_hashes: dict[str, list[bytes]] = {}
        self._offline_hashes: dict[str, list[bytes]] = {}

    def add(self, request: GenerateRequest) -> None:
        """An online request; it is known until ``forget``."""
        scope = request.sampling.kv_scope
        known = request.prompt_token_ids + (request.output_token_ids if scope.num_top is None else [])
        self._online[request.request_id] = known, scope

    def forget(self, request_id: str) -> None:
        """It has ended; unknown ids are ignored."""
        self._online.pop(request_id, None)
        self._online_hashes.pop(request_id, None)
        self._offline_hashes.pop(request_id, None)

    def keep(self, is_held: Callable[[str], bool], num_held: int) -> None:
        """Of online requests that ended unheard nothing stays: where there are many more than are held, the others are
        forgotten."""
        if len(self._online) + len(self._online_hashes) > 2 * num_held + SLACK:
            for known in (self._online, self._online_hashes):
                for request_id in [each for each in known if not is_held(each)]:
                    del known[request_id]

    def of(self, request_id: str) -> Sequence[bytes]:
        """Empty where its tokens are not known. Not to be changed."""
        hashes = self._online_hashes.get(request_id) or self._offline_hashes.get(request_id)
        if hashes is not None:
            return hashes
        online = self._online.pop(request_id, None)
        if online is not None:
            token_ids, scope = online
            made = self._online_hashes[request_id] = prompt_chain(token_ids, self._block_size, scope)
            return made
        offline = self._packed_prompt(request_id)
        if offline is None:
            return ()
        packed, scope = offline
        while len(self._offline_hashes) >= MAX_OFFLINE:  # the oldest first
            del self._offline_hashes[next(iter(self._offline_hashes))]
        made = self._offline_hashes[request_id] = prompt_chain(packed, self._block_size, scope)
        return made
