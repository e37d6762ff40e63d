"""List the benchmarks: python -m benchmarks."""

import ast
from pathlib import Path

for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    if f"python -m benchmarks.{path.stem}" in said:  # else it is only shared
        print(f"python -m benchmarks.{path.stem:<16} {said.splitlines()[0]}")
