"""What all benchmarks share: tables, turns, and what processes take."""

from __future__ import annotations

import os

import psutil

from benchmarks.harness.table import Table, quantiles
from benchmarks.harness.turns import in_turns
from benchmarks.harness.usage import usage_of


def test_a_table_has_a_row_for_each() -> None:
    table = Table.of("Some.", {"n": str, "twice": lambda n: str(2 * n)}, [1, 2])
    assert table.markdown() == "Some.\n\n| n | twice |\n| --- | --- |\n| 1 | 2 |\n| 2 | 4 |"


def test_a_pivot_has_a_column_for_each_value_and_gaps_where_there_is_none() -> None:
    each = [("a", "x", 1), ("a", "y", 2), ("b", "y", 3)]
    table = Table.pivot("", {"name": lambda one: one[0]}, lambda one: one[1], lambda one: str(one[2]), each)
    assert table.header == ["name", "x", "y"]
    assert table.rows == [["a", "1", "2"], ["b", "", "3"]]


def test_quantiles_are_those_of_ranks() -> None:
    assert quantiles([1.0, 2.0, 3.0, 4000.0], 0.0, 0.5, 1.0, digits=1) == ["1.0", "3.0", "4,000.0"]


def test_each_has_as_many_turns_and_is_first_as_often() -> None:
    ran: list[str] = []
    times = in_turns([lambda: ran.append("a"), lambda: ran.append("b")], turns=4, warm_up=2)
    assert ran == ["a", "b", "b", "a"] * 3
    assert [len(each.clock_ms) for each in times] == [len(each.cpu_ms) for each in times] == [4, 4]


def test_usage_is_that_of_the_process() -> None:
    process = psutil.Process(os.getpid())
    with usage_of({"this": process}) as usage:
        sum(range(2_000_000))
    assert usage.seconds > 0 and 0 < usage.cpu_s["this"] <= usage.seconds + 1
    assert usage.most_mib["this"] >= usage.before_mib["this"] > 0
