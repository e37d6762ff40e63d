"""Train with a part of the training images: would more photos help, and of which class?

    perennial curve                     with 12, 25, 50 and 100 % of the training images; the test images are the same
    perennial curve --folds 5 --jobs 2  tests every image: narrower intervals, five times as many trainings

A smaller share is a part of a larger one (split.train_share). Each run is in a work copy of the project, as for
`perennial folds`: if this command is killed, run it again. Your folder stays as it is. Written: metrics/curve/ and
reports/curve.html.
"""

from argparse import Namespace

from pipeline.base import errors
from pipeline.config import params
from pipeline.studies import learning_curve, runner, store


def main(arguments: Namespace) -> int:
    runner.stop_on_signals("what has ended is kept: run again to go on")
    config = params.load()
    errors.raise_if_any(runner.faults(config, runner.machine_of(arguments.on)))
    with store.study_folder("curve", "curve") as folder:
        learning_curve.run(config, arguments.folds, folder, runner.slots(config, arguments.jobs, arguments.on))
    return 0
