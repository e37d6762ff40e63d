"""What the tests stand on: forked starts."""

import os
import sys
from pathlib import Path

from tests.helpers import starts

SAY = """
import os, sys
print(os.getcwd(), sys.argv, sys.path[0], os.environ.get("WORD"), "torch" in sys.modules, "pipeline" in sys.modules)
print("an error", file=sys.stderr)
raise SystemExit(7)
"""


def test_a_forked_process_is_one_of_its_own(tmp_path: Path) -> None:
    """It has the requested folder, arguments, environment, output and exit status, and no module of this project."""
    for name, value, is_forked in (("WORD", "a word", True), ("OMP_NUM_THREADS", "7", False), (starts.REAL, "", False)):
        done = starts.run(
            [sys.executable, "-c", SAY, 2], cwd=tmp_path, env={**os.environ, "WORD": "a word", name: value}
        )
        first = tmp_path if is_forked else ""
        assert done.stdout == f"{tmp_path} ['-c', '2'] {first} a word {is_forked} False\n"
        assert (done.stderr, done.returncode) == ("an error\n", 7)
