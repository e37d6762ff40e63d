"""The modules of pipeline/, and what they import."""

import ast
from functools import cache
from pathlib import Path

from tests.conftest import PROJECT

MODULES = {
    path.relative_to(PROJECT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): path
    for path in sorted((PROJECT / "pipeline").rglob("*.py"))
}


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a file imports, anywhere in it, absolutely and dotted."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def modules_of(path: Path) -> set[str]:
    """The modules of the project that a file imports, without packages."""
    return {name for name in imports(path) if name in MODULES and MODULES[name].name != "__init__.py"}


def closure(module: str) -> set[Path]:
    """The files that a module imports, directly and through others, and the packages they lie in."""
    names, todo = set(), {module}
    while todo:
        name = todo.pop()
        names.add(name)
        names |= {name.rpartition(".")[0]} if "." in name else set()
        todo |= modules_of(MODULES[name]) - names
    return {MODULES[name].relative_to(PROJECT) for name in names}
