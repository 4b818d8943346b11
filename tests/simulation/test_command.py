"""What the command says of a run."""

from tests.simulation.run import Order
from tests.simulation.totals import command_of


def test_a_run_is_told_by_the_command_that_runs_it_again() -> None:
    told = "python -m tests.simulation --seed 7 --hours 0.5 --run-hours 0.5"
    assert command_of(Order(7, 0.5)) == told
    assert command_of(Order(7, 0.5, ("kill", "cut"), (3, 9))) == f"{told} --faults kill,cut --only 3,9"
    assert command_of(Order(7, 0.5, ())) == f"{told} --faults none"
    assert command_of(Order(7, 0.5, faults=())) == f"{told} --faults none"
    assert command_of(Order(7, 0.5, traffic="busy")) == f"{told} --traffic busy"
