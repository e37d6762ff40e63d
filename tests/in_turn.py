"""Runs several trainings one after another in the same processes: importing torch takes longer than a small training.

    python -m tests.in_turn FOLDER...        one process
    FOLDERS=FOLDER:FOLDER...                 the folders, if a launcher starts it without arguments

Each folder has params.yaml and the outputs of prepare. If a training fails, the process ends with its exit status.
"""

import os
import sys

from torch.distributed import TCPStore

from pipeline.running import frame
from pipeline.stages import train


def main() -> int:
    agents = None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        agents = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    for number, folder in enumerate(sys.argv[1:] or os.environ["FOLDERS"].split(":")):
        os.chdir(folder)
        if agents:  # each training has a new store: the keys of a rendezvous cannot be used twice
            store = None
            if os.environ["RANK"] == "0":
                store = TCPStore(os.environ["MASTER_ADDR"], 0, is_master=True, wait_for_workers=False)
                agents.set(f"port/{number}", str(store.port))
            os.environ["MASTER_PORT"] = agents.get(f"port/{number}").decode()
        if status := frame.run_stage("train", train.run):
            print(f"in {folder}", file=sys.stderr)
            return status
        if agents:
            agents.set(f"done/{number}/{os.environ['RANK']}", "")
            agents.wait([f"done/{number}/{rank}" for rank in range(int(os.environ["WORLD_SIZE"]))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
