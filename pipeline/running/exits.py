"""What a launcher and its processes agree on about the end of a run. It imports no torch, which takes seconds."""

import signal

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)  # each asks a run to save and stop
GRACE_SECONDS = 25  # from the first reason to stop to the end, even if a call hangs; torchrun kills after 30
ENDED_NOTE = "PERENNIAL_ENDED_NOTE"  # variable: the path of the file with the rank of the process that ended first
FAILED = "-failed"  # suffix of that path: an empty file, after a process has failed by itself
PEER_DIED = 76  # exit status of a process that exits because another one died
