"""Tables at the width of a terminal and without one."""

import io
from typing import Any

import pytest
from rich.console import Console

from services.local.batches.listing import print_batches
from services.local.commands.output import SplitTable, stdout_console

BATCH: dict[str, Any] = {
    "id": "batch_0123456789abcdef01234567",
    "status": "in_progress",
    "endpoint": "/v1/chat/completions",
    "created_at": 1_700_000_000,
    "request_counts": {"total": 45_000, "completed": 12_345, "failed": 6},
}


def drawn(table: SplitTable, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


def test_columns_that_do_not_fit_stand_below() -> None:
    table = SplitTable(("name", "one", "two", "three"))
    table.add_row("a", "1" * 8, "2" * 8, "3" * 8)
    table.add_row("b", "", "22", "333")
    assert table.parts(100) == [[0, 1, 2, 3]]
    assert table.parts(26) == [[0, 1, 2], [0, 3]]
    assert table.parts(1) == [[0, 1], [0, 2], [0, 3]]
    lines = drawn(table, 26)
    assert [line.split() for line in lines] == [
        *(["name", "one", "two"], ["a", "1" * 8, "2" * 8], ["b", "22"]),
        *(["name", "three"], ["a", "3" * 8], ["b", "333"]),
    ]
    assert all(len(line) <= 26 for line in lines)


def test_batches_stand_in_whole_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_batches(BATCH, BATCH)
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "status", "done", "failed", "left", "total", "endpoint", "created"]
    assert [row.split()[:7] for row in rows] == [
        [BATCH["id"], "in_progress", "12345", "6", "32649", "45000", "/v1/chat/completions"]
    ] * 2
    assert all(line.isprintable() for line in (head, *rows))


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (115, ["id", "status", "done", "failed", "left", "total", "endpoint", "created"]),
        (112, ["id", "status", "done", "failed", "left", "total", "endpoint", "created"]),
        (80, ["id", "status", "done", "failed", "total", "created"]),
        (65, ["id", "status", "done", "failed"]),
        (50, ["id", "status", "done"]),
        (30, ["id"]),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_and_whole_cells(
    monkeypatch: pytest.MonkeyPatch, width: int, columns: list[str]
) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False)
    monkeypatch.setattr("services.local.batches.listing.stdout_console", lambda: console)
    print_batches(BATCH, BATCH | {"status": "done"})
    head, row, other = out.getvalue().splitlines()
    assert head.split() == columns and max(map(len, (head, row, other))) <= width
    cells = {"id": BATCH["id"], "status": "in_progress", "done": "12345", "failed": "6", "left": "32649"}
    cells |= {"total": "45000", "endpoint": "/v1/chat/completions"}
    assert [cells.get(name) for name in columns if name != "created"] == row.split()[
        : len(columns) - ("created" in columns)
    ]


def test_batches_of_several_models_name_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_batches(BATCH | {"model": "a"}, BATCH | {"model": "b"})
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["id", "status", "model"] and [row.split()[2] for row in rows] == ["a", "b"]


def test_without_a_terminal_nothing_is_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    stdout_console().print("word " * 500)
    assert len(capsys.readouterr().out.splitlines()) == 1
