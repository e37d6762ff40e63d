"""Runs stages again in a clone of the commit, on the inputs that this folder's cache holds."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import files, linux, programs
from pipeline.base.dvc_lock import Claims
from pipeline.base.errors import UserError
from pipeline.config.params import Params

WITHOUT_PHOTOS = {"train", "evaluate"}  # the stages that read no photo and no weights of the user


def unversioned(config: Params) -> dict[str, str]:
    """Stage → the input of the user's own that it reads, if no commit has this input (`dvc add` puts it into one)."""
    inputs = {}
    own, inbox = config.data.source in ("inbox", "folder"), Path(config.paths.inbox)
    if own and not (_in_project(inbox) and all(map(_is_added, files.visible(inbox)))):
        inputs["download"] = config.paths.inbox
    weights = Path(config.train.weights)
    if config.train.weights not in ("none", "imagenet") and not _is_added(weights):
        inputs["weights"] = config.train.weights
    return inputs


def _in_project(path: Path) -> bool:
    return not path.is_absolute() and not path.is_symlink()


def _is_added(path: Path) -> bool:
    """Whether a file beside this path says that DVC versions it (or the path is such a file), and Git has that file."""
    file = path if path.suffix == ".dvc" else path.with_name(f"{path.name}.dvc")
    return bool(programs.output("git", "ls-files", "--", str(file)))


def _own_folders(config: Params) -> list[str]:
    """The folders of the user's own files that are inside the project."""
    return [path for path in (config.paths.inbox, config.paths.pretrained) if not Path(path).is_absolute()]


@dataclass(frozen=True)
class Clone:
    """A clone of the commit, and the environment for commands in it."""

    folder: Path
    environ: dict[str, str]


@contextmanager
def of_commit(config: Params, claims: Claims, repeated: list[str]) -> Iterator[Clone]:
    """A clone in a temporary folder, with the inputs of the stages `repeated`. It is removed after the block."""
    with tempfile.TemporaryDirectory(prefix="perennial-verify-") as temporary:
        environ = {**programs.environment(), "DVC_SITE_CACHE_DIR": str(Path(temporary) / "dvc")}
        clone = Clone(Path(temporary) / "clone", environ)
        commit = programs.output("git", "rev-parse", "--short", "HEAD").strip()
        print(f"verify: repeating {', '.join(repeated)} of commit {commit} in {clone.folder}", flush=True)
        prepare(config, claims, repeated, clone)
        yield clone


def prepare(config: Params, claims: Claims, repeated: list[str], clone: Clone) -> None:
    """Clone the commit, use the cache and the archives of this folder, and check out the inputs of the stages."""
    programs.output("git", "clone", "--quiet", ".", str(clone.folder))
    cache = programs.dvc("cache", "dir").strip()
    programs.dvc("config", "--local", "cache.dir", cache, cwd=clone.folder, environ=clone.environ)
    archives, inbox = Path(config.paths.archives), Path(config.paths.inbox)
    if archives.is_dir():
        files.link(clone.folder / archives, archives)
    outs = {path for name in claims if name not in repeated for path in claims[name]["outs"]}
    inputs = sorted(outs & {path for name in repeated for path in claims[name]["deps"]})
    if not WITHOUT_PHOTOS.issuperset(repeated):
        own = (f"{folder}/*.dvc" for folder in _own_folders(config))
        inputs += programs.output("git", "ls-files", "-z", "--", *own).split("\0")[:-1]
    if inputs:
        programs.dvc("checkout", *inputs, cwd=clone.folder, environ=clone.environ)
    # Photos in no commit are read where they are. For a folder outside the project, that is the same path for both.
    if config.data.source == "folder" and "download" in unversioned(config) and not inbox.is_absolute():
        files.link(clone.folder / inbox, inbox)


def repeat(arguments: list[str], clone: Clone) -> None:
    """Run the stages in the clone by force. An interrupt waits until all their processes have ended."""
    command = [sys.executable, "-m", "pipeline.repro", "--force", "--no-run-cache", "--no-commit", *arguments]
    with subprocess.Popen(
        command,
        cwd=clone.folder,
        env=clone.environ,
        preexec_fn=linux.die_with_parent,  # noqa: PLW1509
    ) as process:
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status:
        raise UserError(f"dvc repro in the clone ended with exit status {status}; see above")
