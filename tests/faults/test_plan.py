"""Which faults are drawn, and that a run can be repeated."""

from pathlib import Path

import pytest

from tests.faults.kinds.registry import FAULTS
from tests.faults.plan import Planned, apart, draw, only, read, write
from tests.faults.stack.shape import NATS, Shape

ALL = list(FAULTS.values())


def test_the_same_seed_draws_the_same_faults_whatever_their_number() -> None:
    few, many = draw(7, 20, ALL, Shape()), draw(7, 200, ALL, Shape())
    assert many[:20] == few
    assert draw(8, 20, ALL, Shape()) != few


def test_every_kind_and_every_process_is_drawn() -> None:
    shape = Shape(has_disk=True, has_hosts=True, before=Path())
    planned = draw(0, 2000, ALL, shape)
    assert {each.kind for each in planned} == set(FAULTS)
    assert {each.target for each in planned if each.kind == "killed"} == set(shape.names)


def test_disks_are_hurt_only_where_there_is_one() -> None:
    disks = [FAULTS["full disk"], FAULTS["power cut"]]
    assert {each.target for each in draw(0, 50, disks, Shape(has_disk=True))} == {NATS}
    with pytest.raises(ValueError, match="none of these can be done here: full disk, power cut"):
        draw(0, 50, disks, Shape())


def test_fewer_events_in_the_order_of_all(tmp_path: Path) -> None:
    planned = draw(3, 30, ALL, Shape())
    write(tmp_path / "events.jsonl", planned)
    again: list[Planned] = read(tmp_path / "events.jsonl")
    assert again == planned
    assert [each.number for each in only(again, {12, 3})] == [3, 12]
    assert only(again, set()) == planned


def test_faults_apart_are_the_same_faults() -> None:
    planned = draw(3, 10, ALL, Shape())
    spread = apart(planned, 20.0)
    assert {each.wait_s for each in spread} == {20.0}
    assert [(each.kind, each.target, each.draw) for each in spread] == [
        (each.kind, each.target, each.draw) for each in planned
    ]
