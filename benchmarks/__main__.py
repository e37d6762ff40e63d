"""Run a benchmark by its name, or list them all.

python -m benchmarks                     every benchmark, with its first line
python -m benchmarks loader --tiny       one of them, with its options (--help lists them)
"""

import ast
import runpy
import sys
from pathlib import Path


def commands() -> dict[str, tuple[str, str]]:
    """The module and the first line of every benchmark, by its name."""
    result = {}
    for path in sorted(Path(__file__).parent.glob("*/[!_]*.py"), key=lambda path: path.stem):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if f"python -m benchmarks {path.stem}" in doc:  # other modules are shared by the benchmarks
            result[path.stem] = f"benchmarks.{path.parent.name}.{path.stem}", doc.splitlines()[0]
    return result


def main(arguments: list[str]) -> int:
    """The exit status; a benchmark that runs sets its own."""
    benchmarks = commands()
    if not arguments:
        for name, (_, first_line) in benchmarks.items():
            print(f"python -m benchmarks {name:<16} {first_line}")
        return 0
    name = arguments[0]
    if name not in benchmarks:
        print(f"benchmarks: {name}: no such benchmark; allowed: {', '.join(benchmarks)}", file=sys.stderr)
        return 2
    sys.argv = arguments
    runpy.run_module(benchmarks[name][0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
