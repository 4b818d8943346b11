"""Options of a search, as a group."""

from dataclasses import dataclass
from typing import Annotated

import typer

from loadgen.errors import SloError
from loadgen.options import JsonFileOption, ProgressOption
from loadgen.report.slo import Slo, parse_slo
from services.profiler.slo.search import DEFAULT_PRECISION


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What to keep, how exactly to search, and where to show it."""

    slo: Annotated[
        list[str] | None,
        typer.Option(help="ttft_p99<=800ms, or tbt_mean<=1.05x of online only; repeatable: all are kept."),
    ] = None
    precision: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="How far apart the values are that are tried: 0.05 is 5%.")
    ] = DEFAULT_PRECISION
    json_file: JsonFileOption = None
    progress: ProgressOption = None

    def slos(self) -> list[Slo]:
        """Raises SloError where there are none, or one cannot be understood."""
        if not self.slo:
            raise SloError("nothing to keep: give --slo, for example --slo 'ttft_p99<=800ms'")
        return [parse_slo(expr) for expr in self.slo]
