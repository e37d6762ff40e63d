"""Two processes, of which one has seen a loss that is not finite: both must refuse to go on.

python -m tests.ranks.broken_loss
"""

import os

from pipeline.config import params
from pipeline.learning.loop import Totals
from pipeline.learning.readout import Readout
from pipeline.running import failures, group, rendezvous
from tests.helpers.refusals import refuses


def main() -> None:
    world, settings = rendezvous.world_of(os.environ, "cpu"), params.load().train
    with group.join(world, 60):
        totals = Totals.zero(world.device, 2)
        readout = Readout(world, is_delayed=False)
        (reading,) = readout.read(1, totals, is_late=not world.is_main, stop=world.rank, at_once=False)
        # Rank 0 alone asks for a checkpoint. Each may ask to stop, and all read the same request.
        assert (reading.broken_step, reading.is_late, reading.stop) == (-1, False, world.size - 1)
        if not world.is_main:
            totals.broken_step.fill_(7)
        with refuses(("train.lr", "value")) as error:
            (reading,) = readout.read(8, totals, is_late=world.is_main, stop=0, at_once=False)
            assert reading.is_late
            failures.check_losses_finite(reading.broken_step, settings)
        assert "step 7 " in error.value.faults[0].reason


if __name__ == "__main__":
    main()
