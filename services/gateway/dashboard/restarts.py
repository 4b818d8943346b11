"""How often each service began anew, by what answers a ping."""

from collections import Counter
from collections.abc import Iterable

from shared.protocol.services import ServiceStatus

Incarnation = tuple[int, float]  # pid and start: in containers all pids are alike


class Restarts:
    """Seen since this gateway is there. Several may have one name (gateways, a standby): one that is new is a restart
    where one that was known answers no more."""

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
            known = self._known.setdefault(name, incarnations)
            silent = [each for each in known if each not in incarnations]
            for new in [each for each in incarnations if each not in known]:
                known[new] = None
                if silent:
                    del known[silent.pop(0)]
                    self._counts[name] += 1
