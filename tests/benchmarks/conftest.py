"""Small files in the formats of the real ones."""

import json
import random
from pathlib import Path

import pytest

from benchmarks.figures.trace_lab import TraceLab, TraceOptions
from benchmarks.harness.page import FigureProgress
from tests.loadgen.conftest import prompt_file, server, trace_file

__all__ = ["prompt_file", "server", "trace_file"]  # fixtures

DURATION_S = 12.0
NUM_WINDOWS = 6  # of so long, in the online trace


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory) -> TraceOptions:
    folder = tmp_path_factory.mktemp("workload")
    return TraceOptions(
        online=_trace(folder / "online.csv", prompt_tokens=400, num_windows=NUM_WINDOWS),
        offline=_lengths(folder / "offline.csv"),
        long_online=_trace(folder / "long.csv", prompt_tokens=4000),
        other_offline=_lengths(folder / "other.csv"),
        shots=_questions(folder / "dev.jsonl", count=5),
        questions=_questions(folder / "test.jsonl", count=40),
        duration=DURATION_S,
        tolerance=[0.1, 0.5],
        precision=0.25,
    )


@pytest.fixture(scope="session")
def lab(options: TraceOptions) -> TraceLab:
    return TraceLab(options, FigureProgress())


def _trace(path: Path, prompt_tokens: int, num_windows: int = 1) -> Path:
    """BurstGPT's form: two requests a second."""
    rng = random.Random(path.name)
    rows = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    for index in range(int(2 * DURATION_S * num_windows)):
        prompt, output = rng.randint(1, 2 * prompt_tokens), rng.randint(5, 40)
        rows.append(f"{index / 2},ChatGPT,{prompt},{output},{prompt + output},Conversation log")
    path.write_text("\n".join(rows) + "\n")
    return path


def _lengths(path: Path) -> Path:
    rng = random.Random(path.name)
    rows = [f"{rng.randint(100, 900)},{rng.randint(1, 30)}" for _ in range(50)]
    path.write_text("\n".join(["num_prefill_tokens,num_decode_tokens", *rows]) + "\n")
    return path


def _questions(path: Path, count: int) -> Path:
    """``count`` of each of two subjects, one subject after the other."""
    lines = [
        {
            "subject": subject,
            "question": f"What is fact number {number} of {path.stem} about {subject}? " * 8,
            "choices": ["this", "that", "both", "neither"],
            "answer": "B",
        }
        for subject in ("moral_disputes", "virology")
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
