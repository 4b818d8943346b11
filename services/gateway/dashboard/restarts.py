"""How often each service began anew, by what answers a ping."""

from collections.abc import Collection, Iterable

from shared.protocol.services import ServiceStatus

MAX_SILENT = 32  # services that do not answer any more and are remembered
GONE_S = 600.0  # one that is silent for so long does not begin anew: there are fewer of its name
REPLACED_S = 300.0  # one that goes so soon after another came beside it has been replaced, as in an upgrade

Incarnation = tuple[int, float]  # pid and start: in containers all pids are alike


class Restarts:
    """Seen since this gateway is there. Several may have one name (gateways, a standby): one that is new is a restart
    where one that was known answers no more. Of names that nobody has any more, those that were heard last stay."""

    def __init__(self) -> None:
        self._named: dict[str, _Named] = {}

    @property
    def counts(self) -> dict[str, int]:
        """By service, of all that were heard."""
        return {name: named.num_restarts for name, named in sorted(self._named.items())}

    def heard(self, answers: Iterable[ServiceStatus], now_s: float) -> None:
        """What came on one ping, at a monotonic time."""
        there: dict[str, dict[Incarnation, None]] = {}
        for answer in answers:
            there.setdefault(answer.name, {})[answer.pid, answer.started_s] = None
        for name, incarnations in there.items():
            named = self._named.pop(name) if name in self._named else _Named(incarnations)
            named.heard(incarnations, now_s)
            self._named[name] = named  # the last that was heard
        silent_names = [name for name in self._named if name not in there]
        for name in silent_names[: max(0, len(silent_names) - MAX_SILENT)]:
            del self._named[name]


class _Named:
    """All that have one name."""

    def __init__(self, known: Iterable[Incarnation]) -> None:
        self.num_restarts = 0
        self._heard_s = dict.fromkeys(known, 0.0)  # when each was heard last
        self._replaced: dict[Incarnation, None] = {}  # of those that are silent
        self._beside_s: list[float] = []  # when others came, of which none has replaced one

    def heard(self, there: Collection[Incarnation], now_s: float) -> None:
        new = [each for each in there if each not in self._heard_s]
        back = [each for each in self._replaced if each in there]  # its answer was late
        self._heard_s |= dict.fromkeys(there, now_s)
        self._heard_s = {each: at_s for each, at_s in self._heard_s.items() if at_s > now_s - GONE_S}
        self._beside_s = [at_s for at_s in self._beside_s + [now_s] * len(back) if at_s > now_s - REPLACED_S]
        self._replaced = {each: None for each in self._replaced if each in self._heard_s and each not in there}
        silent = [each for each in self._heard_s if each not in there and each not in self._replaced]
        replaced, silent = silent[: len(self._beside_s)], silent[len(self._beside_s) :]
        self._beside_s = self._beside_s[len(replaced) :] + [now_s] * max(0, len(new) - len(silent))
        self._replaced |= dict.fromkeys(replaced)
        for each in silent[: len(new)]:
            del self._heard_s[each]
            self.num_restarts += 1
