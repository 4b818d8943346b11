"""``python -m benchmarks.bros FIGURE``: the command line of the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.bros import kv, overhead, rates
from benchmarks.bros.bench import DURATION_S, MACHINES, RATES, Bench, Inputs
from benchmarks.figure_run import FigureMaker, run_figures
from benchmarks.page import BROS_PAGE, Result
from benchmarks.progress import FigureProgress
from loadgen.options import ProgressOption
from shared.settings.command_options import one_of

ABOUT = """BROS's evaluation (section 7 of the paper) in the simulator, in virtual time.

Each figure prints its table as Markdown, and writes it and a picture below --out. The requests are drawn from the
lengths that the paper's Table 2 gives; no files are needed.
"""
FIGURES: dict[str, tuple[Callable[[Bench], Result], str]] = {
    "rates": (rates.make, "Latency, attainment and offline throughput by online rate (figures 10 and 11)."),
    "kv": (kv.make, "Attainment by KV policy (figure 13)."),
    "overhead": (overhead.make, "Scheduling over step time (figure 14)."),
}
ModelOption = Annotated[str, typer.Option(help=", ".join(MACHINES), callback=one_of("model", MACHINES))]
RateOption = Annotated[
    list[float] | None, typer.Option(min=0.01, help=f"Online requests/s, repeatable. Default: {RATES}.")
]
DurationOption = Annotated[float, typer.Option(min=1.0, help="Seconds of each run, in virtual time.")]
BudgetOption = Annotated[float, typer.Option(min=0.0, help="Latency budget of hygen.")]
KvBlocksOption = Annotated[int | None, typer.Option(min=1, help="KV blocks; else what fits beside the weights.")]
ChunkOption = Annotated[int, typer.Option(min=1, help="Tokens of a step.")]
OutOption = Annotated[Path, typer.Option(metavar="FOLDER", help=f"Where {BROS_PAGE.file} and {BROS_PAGE.images}/ are.")]

app = typer.Typer(help=ABOUT, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _command(names: Sequence[str]) -> Callable[..., None]:
    """A command that makes these figures."""

    def command(
        model: ModelOption = Inputs().model,
        rate: RateOption = None,
        duration: DurationOption = DURATION_S,
        budget_ms: BudgetOption = Inputs().budget_ms,
        chunk: ChunkOption = Inputs().chunk,
        kv_blocks: KvBlocksOption = None,
        out: OutOption = Path("docs"),
        progress: ProgressOption = None,
    ) -> None:
        inputs = Inputs(model, tuple(sorted(rate or RATES)), duration, budget_ms, chunk, kv_blocks)

        def start(shown: FigureProgress) -> FigureMaker:
            bench = Bench(inputs, shown)
            return lambda name: FIGURES[name][0](bench)

        run_figures(names, BROS_PAGE, out, progress, start)

    return command


for _name, (_, _about) in FIGURES.items():
    app.command(_name, help=_about)(_command([_name]))
app.command("all", help="All of them.")(_command(list(FIGURES)))

if __name__ == "__main__":
    app(prog_name="python -m benchmarks.bros")
