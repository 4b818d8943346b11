"""How often each service began anew, by what answers a ping."""

from collections import Counter
from collections.abc import Iterable

from shared.protocol.services import ServiceStatus

MAX_SILENT = 32  # services that do not answer any more and are remembered

Incarnation = tuple[int, float]  # pid and start: in containers all pids are alike


class Restarts:
    """Seen since this gateway is there. Several may have one name (gateways, a standby): one that is new is a restart
    where one that was known answers no more. Of names that nobody has any more, those that were heard last stay."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Incarnation, None]] = {}
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """By service, of all that were heard."""
        return {name: self._counts[name] for name in sorted(self._known)}

    def heard(self, answers: Iterable[ServiceStatus]) -> None:
        """What came on one ping."""
        there: dict[str, dict[Incarnation, None]] = {}
        for answer in answers:
            there.setdefault(answer.name, {})[answer.pid, answer.started_s] = None
        for name, incarnations in there.items():
            known = self._known[name] = self._known.pop(name, incarnations)  # the last that was heard
            silent = [each for each in known if each not in incarnations]
            for new in [each for each in incarnations if each not in known]:
                known[new] = None
                if silent:
                    del known[silent.pop(0)]
                    self._counts[name] += 1
        silent_names = [name for name in self._known if name not in there]
        for name in silent_names[: max(0, len(silent_names) - MAX_SILENT)]:
            del self._known[name]
            self._counts.pop(name, None)
