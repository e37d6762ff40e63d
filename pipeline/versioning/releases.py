"""The files of a release of Perennial: what a project has of it, and the commits that bring it into a project.

A project that `perennial new` made has the files CONTENT of a commit of Perennial, and RECORD, which names this commit.
Each release is one commit, the child of the release before, so Git merges a new one into the changes of the project.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.base import files, schema
from pipeline.base.errors import Fault, UserError, missing
from pipeline.versioning import programs

# All that a project needs, what code reads of docs/ and results/ included. The workflows in .github are of Perennial.
CONTENT = (
    ".dvc/.gitignore", ".dvc/config", ".dvc/plots", ".dvcignore", ".gitignore", "CITATION.cff", "LICENSE", "Makefile",
    "data/corrections.csv", "data/inbox/.gitignore", "data/pretrained/.gitignore", "docker", "docs/sweep.yaml",
    "dvc.yaml", "params.yaml", "pipeline", "pyproject.toml", "requirements", "results/demo", "results/recipes",
    "data/mine/.gitignore",
)  # fmt: skip
CODE = "pipeline"
BRANCH = "perennial"
RECORD = Path("perennial.json")
OWN = ("README.md",)  # of a project: `new` writes them once, and a release does not change them
REMEDY = f"git checkout {RECORD}"


@dataclass(frozen=True)
class Release:
    """What RECORD says of the release in a project."""

    __pydantic_config__ = schema.STRICT

    version: str
    commit: str  # of Perennial
    tree: str  # Git's hash of the folder `pipeline` in that commit

    @property
    def name(self) -> str:
        """The version and the commit: many commits have the same version."""
        return f"Perennial {self.version} ({self.commit[:10]})"


@dataclass(frozen=True)
class Source:
    """A commit from which a release is taken."""

    repository: Path  # the folder of Git
    commit: str


def git(*words: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The standard output of Git, without the end of the line. `environ`: further variables. Raises UserError."""
    return programs.output("git", *words, cwd=cwd, environ={**programs.environment(), **(environ or {})}).rstrip("\n")


def read(project: Path = Path()) -> Release:
    """The release of a project. Raises UserError for a folder that `perennial new` did not make."""
    if not (project / RECORD).is_file():
        remedy = "perennial new FOLDER makes a project; a clone of Perennial takes a new version by git pull"
        raise missing(RECORD, remedy)
    return schema.json_of(project / RECORD, Release, REMEDY)


def last_commit(project: Path = Path(), revision: str = "HEAD") -> str:
    """The commit of the release that a revision of a project has: of those behind it, the last with another RECORD.

    Raises UserError if there is none.
    """
    if not (found := git("rev-list", "--max-count=1", revision, "--", str(RECORD), cwd=project)):
        raise missing(RECORD, f"commit the file {RECORD} of the release", "in no commit")
    return found


def source_of(folder: Path, revision: str = "") -> Source:
    """The commit of a folder that is a clone of Perennial, or a project: of that, its release.

    Without a revision it is the last commit, and the files of the release must be as in it. Raises UserError.
    """
    if not programs.last_commit(folder) or git("rev-parse", "--show-prefix", cwd=folder):
        reason, remedy = "Git has no commit of this folder", f"git -C {folder} status says more"
        allowed = "a clone of Perennial, or a project"
        raise UserError(Fault(str(folder), "no release", "missing", reason, allowed, remedy))
    if not (commit := programs.commit_of(revision or "HEAD", folder)):
        raise UserError(Fault(str(folder), revision, "unknown", "Git names no commit so", "a commit, branch or tag"))
    if git("ls-tree", commit, "--", str(RECORD), cwd=folder):
        commit = last_commit(folder, commit)
    elif not revision and (changed := programs.changed("--", *CONTENT, cwd=folder)):
        reason, remedy = "a release is a commit", f"commit these files, or put them back (git -C {folder} status)"
        raise UserError(Fault(str(folder), f"changed: {', '.join(changed)}", "differs", reason, remedy=remedy))
    return Source(Path(git("rev-parse", "--absolute-git-dir", cwd=folder)), commit)


def write_files(source: Source, folder: Path) -> Release:
    """Write the files of a release into a folder, with its RECORD. Raises UserError if the commit is no release."""
    listed = git(
        "ls-tree", "-r", "-z", "--name-only", source.commit, "--", *CONTENT, str(RECORD), cwd=source.repository
    )
    names = listed.split("\0")[:-1]
    if "CITATION.cff" not in names or f"{CODE}/__main__.py" not in names:
        raise UserError(Fault(source.commit, "no commit of Perennial", "value", allowed="one that has its files"))
    with tempfile.TemporaryDirectory() as temporary:
        place = (f"--git-dir={source.repository}", f"--work-tree={folder.absolute()}")
        index = {"GIT_INDEX_FILE": f"{temporary}/index"}
        no_hooks = ("-c", "core.hooksPath=/dev/null")
        git(
            "--literal-pathspecs", *no_hooks, *place, "checkout", source.commit, "--", *names, cwd=folder, environ=index
        )
    if not (folder / RECORD).exists():  # else it is the release of a project, which has the record of this one
        version = (folder / "CITATION.cff").read_text(encoding="utf-8").partition("\nversion: ")[2].partition("\n")[0]
        tree = git("rev-parse", f"{source.commit}:{CODE}", cwd=source.repository)
        files.write_json(folder / RECORD, asdict(Release(version, source.commit, tree)))
    return read(folder)


def commit(project: Path, folder: Path, message: str, parent: str = "") -> str:
    """Commit the files in `folder` to the repository of a project, on no branch. Returns the commit.

    Files of OWN that the parent has are in it, too. The index and the files of the project stay as they are.
    """
    with tempfile.TemporaryDirectory() as temporary:
        index = {"GIT_INDEX_FILE": f"{temporary}/index"}
        place = (f"--git-dir={git('rev-parse', '--absolute-git-dir', cwd=project)}", f"--work-tree={folder.absolute()}")
        git(*place, "add", "--all", "--force", "--", ".", cwd=folder, environ=index)
        for line in git("ls-tree", parent, "--", *OWN, cwd=project).splitlines() if parent else ():
            about, name = line.split("\t")
            mode, _, blob = about.split()
            git("update-index", "--add", "--cacheinfo", f"{mode},{blob},{name}", cwd=project, environ=index)
        tree = git("write-tree", cwd=project, environ=index)
    parents = ("-p", parent) if parent else ()
    return git("commit-tree", *parents, "-m", message, tree, cwd=project, environ=identity(project))


def identity(project: Path) -> dict[str, str]:
    """Variables with a name and an address for a commit, where Git has none for this user."""
    variables = dict[str, str]()
    for what, value in (("name", "perennial"), ("email", "perennial@localhost")):
        known = subprocess.run(["git", "config", f"user.{what}"], cwd=project, capture_output=True, check=False)
        names = (f"GIT_{who}_{what.upper()}" for who in ("AUTHOR", "COMMITTER"))
        variables |= {name: value for name in names if not known.stdout and name not in os.environ}
    return variables


def changed_code() -> list[str]:
    """The files of pipeline/ that are not those of the release, with new ones. Raises UserError without a release.

    Files that Git ignores are no code.
    """
    release = read()
    with tempfile.TemporaryDirectory() as temporary:
        index = {"GIT_INDEX_FILE": f"{temporary}/index", "GIT_OBJECT_DIRECTORY": temporary}
        index["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(Path(git("rev-parse", "--git-path", "objects")).absolute())
        git("add", "--all", "--", CODE, environ=index)
        own = git("write-tree", f"--prefix={git('rev-parse', '--show-prefix')}{CODE}/", environ=index)
        if own == release.tree:
            return []
        if subprocess.run(["git", "cat-file", "-e", release.tree], capture_output=True, check=False).returncode:
            return [f"{CODE}/"]  # a clone without the history lacks the files of the release
        found = git("diff-tree", "-r", "-z", "--name-only", "--no-renames", release.tree, own, environ=index)
    return [f"{CODE}/{name}" for name in found.split("\0")[:-1]]
