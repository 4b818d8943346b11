"""What is done to logits before the temperature: biases, and penalties for tokens that are there already."""

import math

import numpy as np
import torch

from kernels.slots import Ints
from services.executor.engines.sampling.grammar_masks import GrammarMasks
from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.seen_tokens import SeenTokens
from services.executor.engines.sampling.token_bans import allowed_tokens, banned_tokens
from shared.replica.engine import TokenHistory

NUMBERS = torch.finfo(torch.float32)


def adjusted(
    logits: torch.Tensor, rows: list[SampleRow], grammars: GrammarMasks | None = None, seen: SeenTokens | None = None
) -> torch.Tensor:
    """``logits`` [num_rows, vocab_size] with what the rows that have a history ask for, as float32; the same tensor
    where no row has one. First the tokens that a row does not allow become impossible (``token_bans``); then come the
    biases, the repetition penalty (CTRL, section 4.1, which divides a positive logit and multiplies a negative one) and
    OpenAI's two: presence once for each token of the output, frequency as often as it is there. ``seen``: of the steps
    before, which saves time."""
    wanting = [(i, row, row.history) for i, row in enumerate(rows) if row.history is not None]
    if not wanting:
        return logits
    found = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).copy_(logits)
    flat, vocab_size = found.view(-1), logits.shape[-1]
    _forbid(found, wanting, grammars)
    _add_biases(flat, vocab_size, wanting)
    seen = seen or SeenTokens()
    _divide_repeated(flat, vocab_size, wanting, seen)
    _subtract_penalties(flat, vocab_size, wanting, seen)
    return found


_Wanting = list[tuple[int, SampleRow, TokenHistory]]  # with its number in the batch


def _forbid(logits: torch.Tensor, wanting: _Wanting, grammars: GrammarMasks | None) -> None:
    rows = [(i, row) for i, row, _ in wanting if row.sampling.forbids_tokens]
    if not rows:
        return
    assert grammars is not None, "an engine that is given such requests knows its model's tokens"
    eos_token_ids = grammars.facts.eos_token_ids
    _allow_only([each for each in rows if _is_narrowed(each[1])], logits, grammars)
    banned = [
        i * logits.shape[-1] + token_id
        for i, row in rows
        if not _is_narrowed(row)
        for token_id in banned_tokens(row, eos_token_ids)
    ]
    if banned:
        logits.view(-1)[torch.tensor(banned, device=logits.device)] = -math.inf


def _is_narrowed(row: SampleRow) -> bool:
    """To tokens that may come; of all others some may not."""
    return bool(row.sampling.grammar or row.sampling.allowed_token_ids)


def _allow_only(rows: list[tuple[int, SampleRow]], logits: torch.Tensor, grammars: GrammarMasks) -> None:
    if rows:
        asked, eos_token_ids = [row for _, row in rows], grammars.facts.eos_token_ids
        allowed = torch.from_numpy(allowed_tokens(asked, logits.shape[-1], eos_token_ids, grammars))
        index = torch.tensor([i for i, _ in rows], device=logits.device)
        logits[index] = logits[index].masked_fill_(~allowed.to(logits.device), -math.inf)


def _add_biases(flat: torch.Tensor, vocab_size: int, wanting: _Wanting) -> None:
    biases = [(i * vocab_size + token_id, bias) for i, row, _ in wanting for token_id, bias in row.sampling.logit_bias]
    if biases:
        places, values = zip(*biases, strict=True)
        flat[torch.tensor(places, device=flat.device)] += torch.tensor(values, device=flat.device)


def _divide_repeated(flat: torch.Tensor, vocab_size: int, wanting: _Wanting, seen: SeenTokens) -> None:
    penalties = {i: row.sampling.repetition_penalty for i, row, _ in wanting}
    known = [(i, row.request_id, history.token_ids) for i, row, history in wanting if penalties[i] != 1.0]
    if not known:
        return
    places = np.concatenate([seen.of(request_id, ids)[0] + i * vocab_size for i, request_id, ids in known])
    index = torch.from_numpy(places).to(flat.device)
    values, factors = flat[index], _per_place(penalties, places // vocab_size, flat.device)
    factors.clamp_(min=NUMBERS.tiny)
    flat[index] = torch.where(values > 0, values / factors, values * factors).clamp_(max=NUMBERS.max)


def _subtract_penalties(flat: torch.Tensor, vocab_size: int, wanting: _Wanting, seen: SeenTokens) -> None:
    presence = {i: row.sampling.presence_penalty for i, row, _ in wanting}
    frequency = {i: row.sampling.frequency_penalty for i, row, _ in wanting}
    penalized = [(i, row.request_id, history) for i, row, history in wanting if presence[i] or frequency[i]]
    found = [(i, seen.of(request_id, h.token_ids, h.num_prompt_tokens)) for i, request_id, h in penalized]
    if not any(len(ids) for _, (ids, _) in found):
        return
    places = np.concatenate([ids + i * vocab_size for i, (ids, _) in found])
    rows, device = places // vocab_size, flat.device
    times = torch.from_numpy(np.concatenate([counts for _, (_, counts) in found])).to(device)
    penalties = _per_place(presence, rows, device) + _per_place(frequency, rows, device) * times
    flat[torch.from_numpy(places).to(device)] -= penalties


def _per_place(values: dict[int, float], rows: Ints, device: torch.device) -> torch.Tensor:
    """The value of each place's row."""
    by_row = np.zeros(max(values) + 1, dtype=np.float32)
    by_row[list(values)] = list(values.values())
    return torch.from_numpy(by_row[rows]).to(device)
