"""Start the processes of the training, and copy its checkpoints meanwhile (`run.checkpoint_copy`).

perennial train
"""

from argparse import Namespace

from pipeline.running import checkpoint_copy, launch


def main(_: Namespace) -> int:
    return launch.start_stage("train", checkpoint_copy.keep)
