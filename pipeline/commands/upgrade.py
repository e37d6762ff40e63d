"""Take another version of Perennial into this project: a commit on the branch `perennial`, merged into this branch.

    perennial upgrade /path/to/perennial          the last commit of a clone, or the release of another project
    perennial upgrade /path/to/perennial v0.2     a commit, branch or tag of it

Git merges the files, line by line: your changes of params.yaml, of the code and of other files stay. Two changes of the
same lines are a conflict, which Git marks in the files. Only committed changes are merged, so others are refused.
"""

import subprocess
import tempfile
from argparse import Namespace
from pathlib import Path

from pipeline.base.errors import Fault, UserError, without_secrets
from pipeline.versioning import programs, releases

ABORT = "git merge --abort"


def check_clean() -> None:
    """Raise UserError if a tracked file differs from the last commit, or if this branch is that of the releases."""
    if releases.git("rev-parse", "--show-prefix"):
        remedy = "a project has a repository of its own: perennial new FOLDER"
        raise UserError(Fault("Git", "this project is a folder of another repository", "value", remedy=remedy))
    if changed := programs.changed("--untracked-files=no"):
        remedy = "commit these files, then run again"
        raise UserError(Fault("Git", f"changed: {', '.join(changed)}", "differs", remedy=remedy))
    if (branch := releases.git("rev-parse", "--abbrev-ref", "HEAD")) == releases.BRANCH:
        reason = "this branch has the releases as they are"
        raise UserError(Fault("Git", f"branch {branch}", "value", reason, "another branch", "git switch main"))


def bring(source: str, revision: str) -> tuple[str, str]:
    """Commit the release that a folder has, as the child of this project's.

    Returns the commit and its message; both are empty if this project has that release. Raises UserError.
    """
    if not Path(source).is_dir():
        allowed, remedy = "a clone of Perennial, or another project", "git clone it first"
        raise UserError(Fault("SOURCE", without_secrets(source), "missing", "no such folder", allowed, remedy))
    with tempfile.TemporaryDirectory() as temporary:
        content = Path(temporary)
        release = releases.write_files(releases.source_of(Path(source), revision), content)
        if release == releases.read():
            return "", ""
        return releases.commit(Path(), content, release.name, releases.last_commit()), release.name


def merge(new: str, message: str) -> None:
    """Merge a commit into this branch. Raises UserError for a conflict, and if Git refuses the merge."""
    command = ["git", "merge", "--quiet", "--no-ff", "--no-verify", "-m", f"Merge {message}", new]
    environ = programs.environment() | releases.identity(Path())
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    is_open = bool(programs.commit_of("MERGE_HEAD"))
    if done.returncode == 0 or is_open:
        releases.git("update-ref", f"refs/heads/{releases.BRANCH}", new)
    if is_open:
        names = releases.git("diff", "--name-only", "--diff-filter=U", "-z").split("\0")[:-1]
        remedy = f"edit each place with <<<<<<<, then: git commit --all; or undo the merge: {ABORT}"
        value = f"this project and {message} have changed the same lines"
        raise UserError(*(Fault(name, value, "differs", remedy=remedy) for name in names))
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())
        remedy = "correct what it names, then run again"
        raise UserError(Fault("git merge", f"exit status {done.returncode}", "failed", reason, remedy=remedy))


def main(arguments: Namespace) -> int:
    """Merge the release, and say what to do next. Returns 0. Raises UserError."""
    old = releases.read()
    check_clean()
    local = Path(arguments.below, arguments.source)
    before = programs.last_commit()
    new, message = bring(str(local) if local.is_dir() else arguments.source, arguments.revision or "")
    if not new:
        print(f"This project has this release already: {old.name}.")
        return 0
    merge(new, message)
    print(f"Merged: {message}; before: {old.name}. Next:")
    if releases.git("diff", "--name-only", before, "HEAD", "--", "requirements"):
        print("  make setup        installs what this version needs: requirements/ has changed")
    print("  perennial plan    says which stages the next run repeats, and why")
    print(f"To undo the merge: git reset --keep {before}")
    return 0
