"""Run a benchmark by its name, or list them all.

python -m benchmarks                     every benchmark, with its first line
python -m benchmarks loader --tiny       one of them, with its options (--help lists them)
python -m benchmarks worker MODULE …     a process that a program has started: the function `worker` of the module
"""

import ast
import importlib
import sys
from pathlib import Path

from pipeline.base.errors import UserError


def commands() -> dict[str, tuple[str, str]]:
    """The module and the first line of every benchmark, by its name."""
    result = {}
    for path in sorted(Path(__file__).parent.glob("*/[!_]*.py"), key=lambda path: path.stem):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if f"python -m benchmarks {path.stem}" in doc:  # other modules are shared by the benchmarks
            result[path.stem] = f"benchmarks.{path.parent.name}.{path.stem}", doc.splitlines()[0]
    return result


def main(arguments: list[str]) -> int | None:
    """The exit status; None for 0. A UserError is one line on standard error, and status 1."""
    if arguments[:1] == ["worker"]:
        importlib.import_module(arguments[1]).worker(*arguments[2:])
        return None
    benchmarks = commands()
    if not arguments:
        for name, (_, first_line) in benchmarks.items():
            print(f"python -m benchmarks {name:<16} {first_line}")
        return None
    name = arguments[0]
    if name not in benchmarks:
        print(f"benchmarks: {name}: no such benchmark; allowed: {', '.join(benchmarks)}", file=sys.stderr)
        return 2
    sys.argv = arguments
    try:
        status: int | None = importlib.import_module(benchmarks[name][0]).main()
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
