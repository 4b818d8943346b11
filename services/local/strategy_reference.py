"""docs/strategies.md, made of the presets and registries: ``python -m services.local.strategy_reference >
docs/strategies.md``."""

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from services.local.commands.config import values_text
from shared.scheduling.kv.eviction.evictions import EVICTIONS, make_eviction
from shared.scheduling.kv.reserve import make_reserve
from shared.scheduling.kv.sharing import KV_SHARINGS
from shared.scheduling.packing.packings import PACKINGS
from shared.scheduling.strategy import NO_OFFLINE_WORK, PRESETS, Strategy, flat
from shared.settings.setting import Setting, settings_of

HEAD = """\
# Strategies

A strategy says what is scheduled how. It has one part in each seam of the scheduler, and the knobs of these parts. A
preset is a strategy with a name; whatever else is given takes the place of what the preset has:

```
slackwater up --preset hygen --offline-order psm
slackwater simulate --preset sarathi++ --kv-sharing bidirectional ...
```

The same settings stand in the table `[strategy]` of the [configuration](configuration.md) and in the environment, and
`slackwater profile` has them as options. A strategy whose parts do not fit each other is refused with the reason. The
executor's registration says which one it runs; its scheduler in the offline-queue follows that, and `slackwater status
--json` shows it. In the code it is one value, `Strategy` in `shared/scheduling/strategy.py`.
"""
PRESETS_HEAD = "## Presets\n\nWhat each has in the seams:\n"
KNOBS_HEAD = "## Knobs\n\nDefaults are those of every preset.\n"
SENTENCE = re.compile(r".+?\.(?=\s+[A-Z]|$)", re.DOTALL)


def strategy_reference() -> Iterator[str]:
    """The page, in pieces that stand on lines of their own."""
    yield HEAD
    yield PRESETS_HEAD
    seams = [setting for setting in settings_of(Strategy) if setting.choices and setting.name != "preset"]
    yield from _table(
        ["preset", *(f"`{seam.name}`" for seam in seams)],
        ([f"`{name}`", *(str(flat(preset)[seam.name]) for seam in seams)] for name, preset in PRESETS.items()),
    )
    yield "\n## Seams\n"
    for seam in seams:
        yield f"### {seam.name}\n\n`{seam.flag}`: {seam.description}.\n"
        yield from _parts(seam)
        yield ""
    yield KNOBS_HEAD
    knobs = [setting for setting in settings_of(Strategy) if not setting.choices]
    yield from _table(
        ["knob", "default", "values", "meaning"],
        ([f"`{each.flag}`", f"`{each.default:g}`", values_text(each), each.description] for each in knobs),
    )


def _parts(seam: Setting) -> Iterator[str]:
    """What can stand there."""
    if seam.name == "packing":
        rows = [
            [*_described(name, part), ", ".join(part.latency_budgets), "yes" if part.orders_online else "no"]
            for name, part in PACKINGS.items()
        ]
        yield from _table(["packing", "what it does", "file", "latency budgets", "orders online requests itself"], rows)
    elif seam.name == "kv_sharing":
        rows = [
            [f"`{name}`", "yes" if each.gives_way else "no", "yes" if each.pauses else "no", _pool(name)]
            for name, each in KV_SHARINGS.items()
        ]
        header = ["sharing", "online requests may take offline blocks", "who gives way is paused", "pool"]
        yield from _table(header, rows)
    elif seam.name in MAKERS:
        names = [name for name in seam.choices if name != NO_OFFLINE_WORK]
        rows = [_described(name, MAKERS[seam.name](name)) for name in names]
        yield from _table(["part", "what it does", "file"], rows)
    else:
        yield f"One of {', '.join(f'`{each}`' for each in seam.choices)}."


MAKERS: dict[str, Callable[[str], object]] = {
    "online_order": lambda name: Strategy.of(online_order=name).make_online_order(),
    "offline_order": lambda name: Strategy.of(offline_order=name).make_offline_order(itertools.repeat(0.0)),
    "kv_eviction": make_eviction,
    "deadline_rule": lambda name: Strategy.of(deadline_rule=name).token_slo,
    "kv_reserve": lambda name: make_reserve(name, 1.0, 0.0),
}


def _described(name: str, part: object) -> list[str]:
    """Its name, the first sentence of what its class says of itself, and the file."""
    words = " ".join((inspect.getdoc(type(part)) or "").split())
    sentence = SENTENCE.match(words)
    assert sentence is not None, f"{type(part)} has no docstring"
    return [f"`{name}`", sentence[0].replace("``", "`").replace("|", "\\|"), _file_of(type(part))]


def _pool(sharing: str) -> str:
    made = KV_SHARINGS[sharing].make_pool(1, 1, 0, make_eviction(next(iter(EVICTIONS))))
    return _file_of(type(made))


def _file_of(kind: type) -> str:
    return f"`{kind.__module__.replace('.', '/')}.py`"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join('---' for _ in header)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print("\n".join(strategy_reference()).rstrip())
