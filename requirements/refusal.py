"""The build backend of pyproject.toml. It refuses to install the project as a package.

`uv sync`, `uv run` and `pip install .` would choose versions of their own, not those of requirements/lock.txt.
"""

import sys

sys.exit("perennial: its packages are in requirements/lock.txt; install them: make setup; then . .venv/bin/activate")
