"""Run with other settings than the last commit, and compare the result with it: an experiment of DVC, in one line.

    perennial try NAME train.color_jitter=0.2 …

The settings are checked before anything runs. The run is that of `perennial repro`. If it is interrupted, the same line
goes on. At its end DVC keeps settings, figures and model as the experiment NAME, and the folder is again as in the last
commit. `dvc exp apply NAME` takes the result over.
"""

import os
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.base import files
from pipeline.base.errors import Fault, UserError, raise_if_any
from pipeline.checks import machine, validity
from pipeline.config import document, params
from pipeline.studies import revisions
from pipeline.versioning import children, dvc_lock, programs

NAME = re.compile(r"(?!.*\.(\.|lock$|$))[A-Za-z0-9][A-Za-z0-9._-]{0,60}")  # Git takes it for a reference
NAMES = "a new name of up to 61 letters, digits, '_', '-' and single '.' between them, that does not end with .lock"
COMMIT = "git add . && git commit -m 'My model'"


def values_of(words: Sequence[str]) -> dict[str, Any]:
    """Dotted key → value of words `key=value`, as DVC reads them. Raises UserError for another one, or a key twice."""
    values = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or key in values:
            allowed = "key=value, such as train.lr=0.05, each key once"
            raise UserError(Fault("SETTING", word, "value", allowed=allowed))
        values[key] = document.value_of(key, text)
    return values


def begin(name: str, words: Sequence[str]) -> bool:
    """Write the settings into params.yaml. Returns whether the experiment has them: the same line was killed after it.

    Raises UserError, and changes nothing, for a wrong name or setting, without a committed result, and if a file of
    the last commit is changed, unless params.yaml, dvc.lock or the metrics by an interrupted start of the same line.
    """
    config, values = params.load(), values_of(words)
    taken = Fault("NAME", name, "value", "it is taken", NAMES, "dvc exp list names the experiments")
    revision, state = revisions.experiments().get(name, ("", ""))
    if not NAME.fullmatch(name):
        raise UserError(replace(taken, reason=""))
    if name in (revisions.HERE, "HEAD") or state in revisions.WITHOUT_FILES:
        raise UserError(taken)
    raise_if_any(validity.faults(params.with_values(config, values), machine.read()))
    figures = programs.output("git", "ls-tree", "HEAD", "--", config.paths.metrics)
    if not figures or "evaluate" not in dvc_lock.committed():
        reason = "the last commit has no result to compare with"
        raise UserError(
            Fault(str(dvc_lock.LOCK), "no result", "missing", reason, remedy=f"perennial repro, then {COMMIT}")
        )
    committed = programs.output("git", "show", f"HEAD:./{params.FILE}")
    tried, here = document.updated_text(committed, values), params.FILE.read_text(encoding="utf-8")
    if tried == committed:
        raise UserError(Fault("SETTING", " ".join(words), "value", "the last commit has it", "another value"))
    if revision and programs.output("git", "show", f"{revision}:./{params.FILE}") != tried:
        raise UserError(taken)
    results = (str(dvc_lock.LOCK), config.paths.metrics)
    others = programs.changed("-uno", "--", ".", *(f":!{path}" for path in (str(params.FILE), *results)))
    if others:  # such as corrected labels: the comparison would be of two changes
        remedy = f"keep the change: {COMMIT}, after perennial repro; or put it aside: git stash"
        raise UserError(Fault(others[0], "not as in the last commit", "differs", remedy=remedy))
    changed = programs.changed("-uno", "--", *results)
    if here not in (committed, tried) or (changed and here == committed):
        what = str(params.FILE if here != committed else dvc_lock.LOCK)
        remedy = f"keep the change: {COMMIT}; or give it up: git checkout . && perennial repro"
        raise UserError(Fault(what, "not as in the last commit", "differs", remedy=remedy))
    files.write_text(params.FILE, tried)
    return bool(revision)


def main(arguments: Namespace) -> int:
    """Run, keep the experiment, restore the folder, compare. Returns the exit status of what failed first, or 0."""
    name = arguments.name
    is_kept = begin(name, arguments.settings)
    program, environ = [sys.executable, "-m", "pipeline"], programs.environment() | {"DVC_EXP_NAME": name}
    if not is_kept and (status := children.run([*program, "repro"], env=environ)):
        print("try: to go on: the same line again; to give up: git checkout . && perennial repro", file=sys.stderr)
        return status
    if not is_kept:
        programs.dvc("exp", "save", "--name", name)
    metrics = params.load().paths.metrics
    programs.output("git", "checkout", "--quiet", "HEAD", "--", str(params.FILE), str(dvc_lock.LOCK), metrics)
    programs.dvc("checkout")
    kept = f"{name} is kept as an experiment; dvc exp apply {name} takes it over; the folder is as in the last commit"
    print(f"\ntry: {kept}", flush=True)
    return children.run([*program, "compare", "HEAD", name], env=dict(os.environ))
