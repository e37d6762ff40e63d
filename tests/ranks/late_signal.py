"""A launcher that receives SIGTERM again, twice, after its only process has stopped because of the first one.

python -m tests.ranks.late_signal
"""

import os
import signal
import subprocess

from pipeline.running.launchers import supervise


def main() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        pids = {"process 0 of 1": process.pid}
        with supervise(lambda: pids, timeout_seconds=600):
            os.kill(os.getpid(), signal.SIGTERM)
            assert process.wait() == -signal.SIGTERM
            pids.clear()
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    print("still here")


if __name__ == "__main__":
    main()
