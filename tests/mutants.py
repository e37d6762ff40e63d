"""Small wrong changes (mutants) of modules: lists those that no test of the module's own test file notices.

    python -m tests.mutants training.schedule     60 changes of this module against tests/test_schedule.py
    python -m tests.mutants loader.sampler split --count 200 --seed 1     200 changes of two modules, another selection

Each change alters one node of the syntax tree: a comparison, number, operand, argument, order, constant, branch or
attribute is replaced, or a statement or keyword is left out. The same seed selects the same changes. Messages and types
are not changed. Changes that no test can notice are listed in equivalent_mutants.py and are not tried.
Each change runs in a fork of a process that has imported the libraries, until the first test fails. An endless loop and
a crash count as noticed. A limit: processes that a test starts read the module from its file, without the change.
"""

import argparse
import ast
import importlib
import importlib.util
import os
import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.conftest import PROJECT
from tests.equivalent_mutants import EQUIVALENT

SECONDS = 20  # CPU seconds, plus three times what the tests need without a change: more is an endless loop
MEMORY = 8 * 2**30  # bytes that a fork may allocate
OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.FloorDiv,), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,), ast.BitXor: (ast.BitOr,), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,),
    ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
NAMES = dict(
    pair
    for one, other in (
        ("min", "max"), ("any", "all"), ("minimum", "maximum"), ("floor", "ceil"), ("argmin", "argmax"),
        ("sin", "cos"), ("first", "last"), ("rint", "floor"), ("bisect_right", "bisect_left"),
    )
    for pair in ((one, other), (other, one))
)  # fmt: skip
PYTEST_OPTIONS = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
LIBRARIES = {"ast", "hashlib", "imagehash", "json", "math", "np", "os", "self", "sys", "torch"}
SYMMETRIC = {"min", "max", "minimum", "maximum"}  # the order of their arguments does not matter
MORE_TESTS = {  # modules with tests in a file of another name
    "config.params": ["tests/test_odd_params.py"],
    "config.document": ["tests/test_params.py", "tests/test_odd_params.py"],
    "data.layout": ["tests/test_folders.py", "tests/test_labels.py"],
    "data.folders": ["tests/test_layouts.py"],
    "config.combinations": ["tests/test_validity.py", "tests/test_ways.py"],
}
UNCHANGED = {"annotation", "returns", "decorator_list", "exc", "type_params"}  # types, and the texts of error messages


@dataclass(frozen=True)
class Change:
    """One node of a module's syntax tree, and its replacement."""

    module: str
    tree: ast.Module
    function: str  # the outermost function or class around the node
    statement: ast.AST  # the smallest statement around the node
    parent: ast.AST
    field: str
    index: int | None  # in a field that is a list
    before: Any
    after: ast.AST

    def __str__(self) -> str:
        before, after, statement = (source(node)[:110] for node in (self.before, self.after, self.statement))
        where = f"{path_of(self.module).relative_to(PROJECT)}:{self.before.lineno}: {before}  →  {after}"
        return where if before == statement else f"{where}  in  {statement}"

    def make(self) -> ast.Module:
        """The changed tree. It stays changed, so call this in a process of its own."""
        ast.copy_location(self.after, self.before)
        if self.index is None:
            setattr(self.parent, self.field, self.after)
        else:
            getattr(self.parent, self.field)[self.index] = self.after
        return ast.fix_missing_locations(self.tree)


def is_equivalent(change: Change) -> bool:
    """Whether the change is listed as one that no test can notice."""
    return any(
        change.function == one.function
        and source(change.statement).startswith(one.statement)
        and one.before in ("", source(change.before))
        and one.after in ("", source(change.after))
        for one in EQUIVALENT
    )


def source(node: ast.AST) -> str:
    """The source text of a node, in one line."""
    return " ".join(ast.unparse(node).split())


def path_of(module: str) -> Path:
    return PROJECT / "pipeline" / f"{module.replace('.', '/')}.py"


def tests_of(module: str) -> list[str]:
    """The module's test files; those of engine.loop are test_engine_loop.py or test_loop.py. Empty if there is none."""
    names = [f"tests/test_{name}.py" for name in (module.replace(".", "_"), module.rpartition(".")[2])]
    return [*[name for name in names if (PROJECT / name).exists()][:1], *MORE_TESTS.get(module, [])]


def changes(module: str) -> list[Change]:
    """Every change of a module, in the order of its lines."""
    tree, result = ast.parse(path_of(module).read_text()), []
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    constants = sorted(name for name in stored if name.isupper() and len(name) > 1)
    for top in tree.body:
        if isinstance(top, ast.If):  # __name__ == "__main__"
            continue
        attributes = {(ast.unparse(n.value), n.attr) for n in ast.walk(top) if isinstance(n, ast.Attribute)}
        for statement, parent, field, index, node in nodes(top, top):
            where = module, tree, getattr(top, "name", ""), statement, parent, field, index, node
            replacements = variants(node, constants, attributes)
            # (0, 0) with its items swapped is no change.
            result += [Change(*where, other) for other in replacements if ast.dump(other) != ast.dump(node)]
    return result


def nodes(parent: ast.AST, statement: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, str, int | None, Any]]:
    """Every expression and statement below a node: (smallest statement around it, parent, field, index, node)."""
    for field, value in ast.iter_fields(parent):
        if field in UNCHANGED or isinstance(parent, ast.JoinedStr):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            inner = node if isinstance(node, ast.stmt) else statement
            if isinstance(node, ast.expr | ast.stmt):
                yield inner, parent, field, index, node
            if isinstance(node, ast.AST):
                yield from nodes(node, inner)


def variants(node: ast.AST, constants: list[str], attributes: set[tuple[str, str]]) -> Iterator[ast.AST]:
    """Wrong replacements of an expression or statement."""
    yield from operations(node)
    yield from orders(node)
    yield from names(node, constants, attributes)
    yield from statements(node)
    if isinstance(node, ast.Call):
        yield from calls(node.func, node.args, node.keywords)


def operations(node: ast.AST) -> Iterator[ast.AST]:
    """Another number, comparison or operator; an operand or condition left out; the other branch."""
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Compare(left, [op], right):
            yield from (ast.Compare(left, [other], right) for other in others(op))
        case ast.BinOp(left, op, right):
            yield from (left, right, *(ast.BinOp(left, other, right) for other in others(op)))
        case ast.BoolOp(op, values):
            yield from (*values, *(ast.BoolOp(other, values) for other in others(op)))
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.GeneratorExp(elt, [one]) | ast.ListComp(elt, [one]) if one.ifs:
            yield type(node)(elt, [ast.comprehension(one.target, one.iter, [], 0)])
        case ast.Subscript(value, ast.Slice(), ast.Load()):
            yield value


def others(op: Any) -> list[Any]:
    """Operators that may be written by mistake instead of this one."""
    return [other() for other in OPERATORS.get(type(op), ())]


def orders(node: ast.AST) -> Iterator[ast.AST]:
    """The same with two neighbouring items swapped."""
    match node:
        case ast.BinOp(left, ast.Sub() | ast.Div() | ast.FloorDiv() | ast.Mod() | ast.Pow() as op, right):
            yield ast.BinOp(right, op, left)
        case ast.Tuple(elts, ast.Load()) | ast.List(elts, ast.Load()):
            yield from (type(node)(items, ast.Load()) for items in swapped(elts))
        case ast.Dict(keys, values):
            yield from (ast.Dict(keys, items) for items in swapped(values))


def swapped(items: list[ast.expr]) -> Iterator[list[ast.expr]]:
    """The list with one neighbouring pair swapped, for each pair."""
    for k in range(len(items) - 1):
        yield [*items[:k], items[k + 1], items[k], *items[k + 2 :]]


def names(node: ast.AST, constants: list[str], attributes: set[tuple[str, str]]) -> Iterator[ast.AST]:
    """Another constant of the module, another attribute of the same object, another function."""
    match node:
        case ast.Name(name, ast.Load()) if name in constants:
            k = constants.index(name)
            near = {constants[k - 1], constants[k + 1 - len(constants)]} - {name}
            yield from (ast.Name(other, ast.Load()) for other in sorted(near))
        case ast.Name(name, ast.Load()) if name in NAMES:
            yield ast.Name(NAMES[name], ast.Load())
        case ast.Attribute(value, name, ast.Load()) if name in NAMES:
            yield ast.Attribute(value, NAMES[name], ast.Load())
        case ast.Attribute(ast.Name(owner), name, ast.Load()) if owner not in LIBRARIES:
            used = sorted(other for object_, other in attributes if object_ == owner and other != name)
            yield from (ast.Attribute(ast.Name(owner, ast.Load()), other, ast.Load()) for other in used[:2])


def calls(func: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> Iterator[ast.AST]:
    """The argument without the call; arguments left out, swapped, or 0."""
    if len(args) == 1 and not keywords:
        yield args[0]
    if len(args) > 1:
        yield ast.Call(func, args[:-1], keywords)
    if ast.unparse(func).split(".")[-1] not in SYMMETRIC:
        yield from (ast.Call(func, items, keywords) for items in swapped(args))
    for k, one in enumerate(args):
        if isinstance(one, ast.Name | ast.Attribute):
            yield ast.Call(func, [*args[:k], ast.Constant(0), *args[k + 1 :]], keywords)
    for k, named in enumerate(keywords):
        yield ast.Call(func, args, [*keywords[:k], *keywords[k + 1 :]])
        if isinstance(named.value, ast.Name | ast.Attribute):
            yield ast.Call(func, args, [*keywords[:k], ast.keyword(named.arg, ast.Constant(0)), *keywords[k + 1 :]])


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """A statement left out or replaced; a condition that is always true or always false."""
    match node:
        case ast.If(_, body, orelse):
            yield from (ast.If(ast.Constant(value), body, orelse) for value in (True, False))
        case ast.Return(value) if value:
            yield ast.Return(ast.Constant(None))
        case ast.AugAssign(target, op, value):
            yield from (ast.Pass(), *(ast.AugAssign(target, other, value) for other in others(op)))
        case ast.Expr(value) if not isinstance(value, ast.Constant):
            yield ast.Pass()
        case (
            ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.Raise() | ast.Delete() | ast.Continue() | ast.Break()
        ):
            yield ast.Pass()


class Quick:
    """A pytest plugin: hypothesis does not shrink a failing example."""

    def pytest_configure(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", hypothesis.settings.default, phases=phases)
        hypothesis.settings.load_profile("mutants")


def load(change: Change) -> None:
    """Import the changed module instead of the real one."""
    name, path = f"pipeline.{change.module}", path_of(change.module)
    if any("compiled(" in ast.unparse(top) for top in change.tree.body if getattr(top, "name", "") == change.function):
        importlib.import_module("pipeline.loader.compiled").KEPT = False  # type: ignore[attr-defined]
    package, _, last = name.rpartition(".")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    setattr(importlib.import_module(package), last, module)
    exec(compile(change.make(), path, "exec"), module.__dict__)


def run(tests: list[str], change: Change | None) -> int:
    """pytest's exit status with a change. Call it in a process of its own."""
    if change:
        load(change)
    return int(pytest.main([*PYTEST_OPTIONS, *tests], plugins=[Quick()]))


def fork(tests: list[str], change: Change | None, seconds: int) -> int:
    """Start `run` in a fork without output and with this many CPU seconds; the PID."""
    if child := os.fork():
        return child
    status = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        status = run(tests, change)
    finally:
        os._exit(status)


def select(modules: list[str], count: int, seed: int) -> list[Change]:
    """At most `count` changes at random, without the equivalent ones."""
    everything = [change for module in modules for change in changes(module)]
    random.Random(seed).shuffle(everything)
    return [change for change in everything if not is_equivalent(change)][:count]


def unseen(modules: list[str], chosen: list[Change], jobs: int) -> Iterator[Change]:
    """The changes with which all tests of their module pass."""
    seconds = {}
    for module in modules:
        _, status, usage = os.wait4(fork(tests_of(module), None, 3600), 0)
        if status:
            sys.exit(f"{' '.join(tests_of(module))}: fails without a change")
        seconds[module] = SECONDS + 3 * int(usage.ru_utime + usage.ru_stime)
    running: dict[int, Change] = {}
    for change in [*chosen, *[None] * jobs]:
        if len(running) == jobs or (change is None and running):
            child, status = os.wait()
            passed = running.pop(child)
            if status == 0:
                yield passed
        if change:
            running[fork(tests_of(change.module), change, seconds[change.module])] = change


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", metavar="MODULE")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    for module in options.modules:
        if not tests_of(module):
            parser.error(f"{module}: has no test file; needed: tests/test_{module.replace('.', '_')}.py")
        for tests in tests_of(module):
            importlib.import_module(tests.removesuffix(".py").replace("/", "."))
    for name in [name for name in sys.modules if name.split(".")[0] in {"pipeline", "tests"}]:
        del sys.modules[name]
    chosen, number = select(options.modules, options.count, options.seed), 0
    for number, change in enumerate(unseen(options.modules, chosen, options.jobs), 1):  # noqa: B007 (the last is used)
        print(change, flush=True)
    print(f"{number} of {len(chosen)} changes are not noticed by any test")
    return 0


if __name__ == "__main__":
    sys.exit(main())
