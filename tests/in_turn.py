"""Several trainings in one start of the processes, for importing torch takes longer than a small training.

    python -m tests.in_turn FOLDER...        by itself, or by a launcher of pipeline.launch, which gives no arguments:
    FOLDERS=FOLDER:FOLDER...                 then the folders are named here

Each folder holds params.yaml and what prepare leaves. A process that fails ends with its status.
"""

import os
import sys

from torch.distributed import TCPStore

from pipeline import train


def main() -> int:
    agents = None
    if "MASTER_ADDR" in os.environ:
        agents = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    for number, folder in enumerate(sys.argv[1:] or os.environ["FOLDERS"].split(":")):
        os.chdir(folder)
        if agents:  # the processes meet anew, in a store of their own: one that has been met in is used up
            own = None
            if os.environ["RANK"] == "0":
                own = TCPStore(os.environ["MASTER_ADDR"], 0, is_master=True, wait_for_workers=False)
                agents.set(f"port/{number}", str(own.port))
            os.environ["MASTER_PORT"] = agents.get(f"port/{number}").decode()
        if status := train.main():
            print(f"in {folder}", file=sys.stderr)
            return status
        if agents:
            agents.set(f"done/{number}/{os.environ['RANK']}", "")
            agents.wait([f"done/{number}/{rank}" for rank in range(int(os.environ["WORLD_SIZE"]))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
