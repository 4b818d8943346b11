"""A replay: with a baseline the online-only and offline-only windows, then the measured one."""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadgen.client.abilities import RequestMaker, probe
from loadgen.client.openai_client import ModelCard, OpenAIClient
from loadgen.client.openloop import OpenLoop
from loadgen.client.records import RequestRecord
from loadgen.errors import LoadgenError, ServerError, WorkloadError
from loadgen.offline.batch import OfflineBatch
from loadgen.offline.bodies import OfflineMaker, fit_backlog
from loadgen.offline.requests import OfflineRequests
from loadgen.phase import OfflineDriver, Phase
from loadgen.progress import ReplayProgress
from loadgen.report.outcome import OFFLINE_ONLY, ONLINE_ONLY, TOGETHER, PhaseOutcome, compose
from loadgen.report.report import Report, RunFacts
from loadgen.report.slo import Slo
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling, cap_context
from loadgen.workload.traces import TraceRequest
from shared.errors import first_of

MAX_ERRORS = 5  # that are told, of each phase
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What to run. ``requests`` are the scaled trace; ``prompts`` the backlog; either may be empty, not both."""

    requests: Sequence[TraceRequest]
    prompts: Sequence[OfflinePrompt]
    scaling: Scaling
    trace: str | None = None
    prompt_file: str | None = None
    model: str | None = None
    model_path: Path | None = None
    filler: str | None = None  # text that prompts are cut from
    max_context: int | None = None
    slos: Sequence[Slo] = ()
    baseline: bool = False
    offline_only_share: float = 0.5
    offline_mode: str = "auto"  # "auto", "batch" or "requests"
    offline_concurrency: int = 16
    drain: bool = False
    offline_extra: Mapping[str, Any] = field(default_factory=dict)  # further fields of each offline request's body
    count_generated: bool = False  # a batch's output tokens as they come, not as requests end
    warm_up_s: float = 0.0  # that offline work runs before the window begins
    trace_notes: Sequence[str] = ()  # what to know of its requests
    mark_offline: bool = False  # offline prompts begin with a line of the run's own, to miss what others left cached

    def __post_init__(self) -> None:
        if not self.requests and not self.prompts:
            raise WorkloadError("nothing to send: give --online, --offline or both")
        if self.slos and not self.requests:
            raise WorkloadError("an SLO is about online latency: give --online too")
        if self.baseline and not self.requests:
            raise WorkloadError("--baseline compares with an online-only run: give --online too")
        relative = next((slo.expr for slo in self.slos if slo.relative), None)
        if relative and not self.baseline:
            raise WorkloadError(f"SLO {relative!r} is relative to the online-only run: give --baseline too")

    def departures(self, sent: Sequence[TraceRequest], max_context: int | None, in_token_ids: bool) -> list[str]:
        """The trace's notes, and others of what is not as the plan has it. ``sent``: its requests, cut to the context;
        ``in_token_ids``: prompts are ids, which without a model folder are none of a text."""
        notes = [*self.trace_notes]
        num_cut = sum(ours != theirs for ours, theirs in zip(sent, self.requests, strict=True))
        if num_cut:
            what = "the context of" if in_token_ids or self.max_context else "what is sure to fit the context:"
            notes.append(f"{num_cut} online requests were cut to {what} {max_context} tokens")
        if self.filler is not None and self.model_path is None and in_token_ids:
            notes.append("prompts are plain token ids without --filler's text: give --model-path to have that in ids")
        return notes

    def facts(
        self, date: str, url: str, model: str, max_context: int | None, prompt_form: str, exact_output: bool
    ) -> RunFacts:
        """What a report says of the run."""
        return RunFacts(
            date=date,
            url=url,
            model=model,
            trace=self.trace,
            prompts=self.prompt_file,
            max_context=max_context,
            prompt_form=prompt_form,
            exact_output=exact_output,
            **asdict(self.scaling),
        )


class Replay:
    """One run against one server: ``prepare``, ``run``, ``report``. The report may be taken after an interrupt."""

    def __init__(self, plan: ReplayPlan, client: OpenAIClient, progress: ReplayProgress) -> None:
        self._plan = plan
        self._client = client
        self._progress = progress
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self._salt = secrets.token_hex(4)
        self._phases: dict[str, Phase] = {}
        self._notes: list[str] = []

    @property
    def started(self) -> bool:
        """There is something to report."""
        return bool(self._phases)

    async def prepare(self) -> None:
        """Find the model and how the server takes prompts; fit lengths to the context. Raises ServerError, and
        WorkloadError for a backlog that is no batch where it has to be one."""
        plan = self._plan
        card = await self._model_card()
        self._max_context = plan.max_context or card.max_model_len
        asked = self._client, card.id, plan.model_path, plan.filler, self._salt
        self._maker = await probe(*asked, self._max_context)
        if plan.offline_mode == "batch" and not self._maker.abilities.batches:
            raise ServerError(f"{self._client.url} has no /v1/batches: use --offline-mode requests")
        most = plan.max_context or self._maker.fitting(card.max_model_len)
        self._requests = cap_context(plan.requests, most)
        self._prompts = fit_backlog(plan.prompts, plan.scaling.length_scale, most, plan.model_path)
        if self._has_batches:
            endpoints = sorted(set(map(OfflineMaker(self._maker).endpoint, self._prompts)))
            if len(endpoints) > 1:
                raise WorkloadError(
                    f"a batch has one endpoint, the backlog has {' and '.join(endpoints)}: use --offline-mode requests"
                )
        self._notes += plan.departures(self._requests, most, self._maker.abilities.token_ids)
        if self._requests and not self._maker.abilities.exact_output:
            self._notes.append("the server does not take ignore_eos: answers may be shorter than the trace's")

    @property
    def _has_batches(self) -> bool:
        """The backlog goes as such."""
        return self._plan.offline_mode != "requests" and self._maker.abilities.batches

    async def _model_card(self) -> ModelCard:
        cards = await self._client.models()
        wanted = self._plan.model
        card = next((card for card in cards if wanted in (None, card.id)), None)
        if card is None:
            served = ", ".join(card.id for card in cards) or "none"
            raise ServerError(f"{self._client.url} does not serve model {wanted or ''}; it serves: {served}")
        return card

    async def prepare_and_run(self) -> None:
        """Both. Raises ServerError."""
        await self.prepare()
        await self.run()

    async def run(self) -> None:
        """All phases, one after another. Raises ServerError."""
        plan, duration_s = self._plan, self._plan.scaling.duration_s
        if plan.baseline:
            await self._run_phase(ONLINE_ONLY, duration_s, online=True, offline=False)
            if plan.prompts:
                await self._run_phase(OFFLINE_ONLY, duration_s * plan.offline_only_share, online=False, offline=True)
        await self._run_phase(TOGETHER, duration_s, online=bool(plan.requests), offline=bool(plan.prompts))

    async def _run_phase(self, name: str, duration_s: float, online: bool, offline: bool) -> None:
        """Each phase has prompts of its own, so that none finds its prefixes in a cache that another warmed."""
        self._progress.phase(name, len(self._requests) * online, len(self._prompts) * offline)
        salt = f"{self._salt}:{name}"
        loop = OpenLoop(self._client, self._salted(salt), self._requests, self._tell_online) if online else None
        driver = self._offline_driver(name, salt) if offline else None
        phase = self._phases[name] = Phase(self._client, duration_s, loop, driver, self._plan.warm_up_s)
        try:
            await phase.run(self._plan.drain and name == TOGETHER)
        except ExceptionGroup as group:
            named = first_of(group, LoadgenError)
            if named is None:
                raise
            raise named from group

    def _tell_online(self, loop: OpenLoop) -> None:
        self._progress.online(len(loop.records), loop.num_finished, loop.num_failed)

    def _salted(self, salt: str) -> RequestMaker:
        return replace(self._maker, prompts=self._maker.prompts.salted(salt))

    def _offline_driver(self, name: str, salt: str) -> OfflineDriver:
        mark = f"Set {self._salt}.\n" if name == OFFLINE_ONLY or self._plan.mark_offline else ""
        maker = OfflineMaker(self._salted(f"{salt}:offline"), mark, self._plan.offline_extra)
        made = self._client, maker, self._prompts, self._progress.offline
        if self._has_batches:
            return OfflineBatch(*made, self._plan.count_generated)
        return OfflineRequests(*made, self._plan.offline_concurrency)

    def report(self, partial: bool) -> Report:
        """What has been measured so far."""
        plan, abilities = self._plan, self._maker.abilities
        shape = abilities.prompt_form, abilities.exact_output
        facts = plan.facts(self._date, self._client.url, self._maker.model, self._max_context, *shape)
        notes = [*self._notes, *(self._cut_short() if partial else ()), *self._trouble_notes()]
        return compose(facts, self.outcomes(), plan.slos, plan.baseline, partial, notes)

    def _cut_short(self) -> Iterator[str]:
        """The phase that ran last, if one did."""
        for name, phase in list(self._phases.items())[-1:]:
            yield f"{name}: stopped {phase.how_far}"

    def outcomes(self) -> dict[str, PhaseOutcome]:
        """What each phase that has begun measured so far, by its name."""
        return {name: phase.outcome() for name, phase in self._phases.items()}

    def online_failures(self) -> list[str]:
        """What failed requests say, with their number, of all phases."""
        return [note for phase in self._phases.values() for note in _online_failures(phase)]

    def failed_online(self) -> list[str]:
        """Each online request that failed, of all phases: which, when it was due in its window, and why."""
        return [failed for phase in self._phases.values() for failed in phase.failed_online()]

    def _trouble_notes(self) -> list[str]:
        notes = []
        for name, phase in self._phases.items():
            trouble = [phase.trouble] if phase.trouble else []
            told = (*trouble, *_short_answers(phase), *_online_failures(phase), *_offline_failures(phase))
            notes += [f"{name}: {note}" for note in told]
        return notes


def _short_answers(phase: Phase) -> list[str]:
    """Of a server that takes ``ignore_eos`` as it takes any field."""
    online = phase.online
    if online is None or not online.maker.abilities.exact_output or not online.num_short:
        return []
    return [f"{online.num_short} answers are shorter than the trace's, though the server takes ignore_eos"]


def _online_failures(phase: Phase) -> list[str]:
    """Of its online requests."""
    return _counted("online requests failed", _errors(phase.online.records if phase.online else ()))


def _offline_failures(phase: Phase) -> list[str]:
    """Of its offline requests, with those that were not taken."""
    match phase.offline:
        case OfflineRequests() as requests:
            return [*_counted("offline requests failed", _errors(requests.records)), *_not_taken(requests)]
        case OfflineBatch() as batch:
            return [*batch.notes, *_counted("offline requests failed", batch.failures)]
        case None:
            return []


def _errors(records: Iterable[RequestRecord]) -> Iterator[str]:
    """Of those that failed."""
    return (record.error for record in records if record.failed and record.error is not None)


def _counted(what: str, errors: Iterable[str]) -> list[str]:
    """The most frequent, one of those that differ in numbers alone for all of them; then how many others."""
    alike: dict[str, list[str]] = {}
    for error in errors:
        alike.setdefault(NUMBER.sub("", error), []).append(error)
    groups = sorted(alike.values(), key=len, reverse=True)
    notes = [f"{len(group)} {what}: {group[0]}" for group in groups[:MAX_ERRORS]]
    if others := sum(map(len, groups[MAX_ERRORS:])):
        notes.append(f"{others} {what}: other errors")
    return notes


def _not_taken(offline: OfflineRequests) -> list[str]:
    """Requests that went again, and those that would have."""
    waiting = (record.error for record in offline.records if record.goes_again and record.error is not None)
    notes = _counted("offline requests waited at the end to go again", waiting)
    if times := offline.num_again:
        notes.append(f"the server did not take offline requests, which went again: {times} times")
    return notes
