"""What a paper is to the harness: its options, and its figures by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.page import Page, Result
from loadgen.progress import ReplayProgress


@dataclass(frozen=True, slots=True)
class Figure:
    """``make``: of what the paper's ``open`` returns; ``files``: the options that it cannot do without."""

    make: Callable[[Any], Result]
    about: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Paper:
    """``options``: a dataclass, whose fields are options of the paper's command; ``open``: what all figures of one
    invocation share, so that they share runs too; ``figures``: those that need the same runs stand together."""

    page: Page
    about: str
    options: type
    open: Callable[[Any, ReplayProgress], Any]
    figures: Mapping[str, Figure]
