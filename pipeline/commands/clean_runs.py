"""Remove what finished and stale runs left in runs/, and print how much space that freed."""

from argparse import Namespace

from pipeline.config import params
from pipeline.running import runs


def main(_: Namespace) -> int:
    return runs.clean(params.load())
