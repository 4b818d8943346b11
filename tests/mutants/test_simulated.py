"""Mutants in the simulation: what clients see tells on one."""

import pytest

from tests.mutants.campaign import Verdict
from tests.mutants.mutations import mutants_of
from tests.mutants.simulated import HEAD, Simulated

GENERATION = "services/gateway/live/generation.py"


@pytest.mark.slow
def test_a_stream_whose_reader_is_never_woken_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    takes = [each for each in mutants_of(GENERATION) if each.function == "Generation.take" and each.after == "pass"]
    unwoken = next(each for each in takes if each.before == "self._changed.set()")
    trial = next(each for each in takes if each.before == "self.crashes.clear()")
    simulated = Simulated([unwoken, trial], num_runs=1)
    assert simulated.run() == 0
    assert simulated.verdicts == {unwoken: Verdict.KILLED, trial: Verdict.ALIVE}
    assert simulated.told_on.total() == 1
    assert simulated.table([GENERATION])[0] == HEAD
    assert str(unwoken) in capsys.readouterr().out
