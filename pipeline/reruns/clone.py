"""A run that somebody else has published, in a clone of its Git repository: `perennial verify --from`.

The checker is this project's own code. What it repeats are the stages of the clone, which are somebody else's code.
"""

import configparser
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path

from pipeline.base import errors, files, schema
from pipeline.base.errors import Fault, UserError
from pipeline.config import document, machine, params, validity
from pipeline.config.machine import LOCKED_PACKAGES, PROJECT
from pipeline.config.params import Params
from pipeline.reruns import folder, record, repetition
from pipeline.versioning import dvc_lock, integrity, programs
from pipeline.versioning.dvc_lock import StageHashes

BESIDE = ("*.py", "*/__init__.py", ".dvcignore", ".dvc/config")  # what a stage could import instead of a library; DVC's
COMPILED = (".pyc", ".so", ".pth")
LOCAL = (".dvc/config.local", ".dvc/tmp/", ".dvc/cache/")  # what DVC writes on one machine
CONFIG = Path(".dvc/config")
SETTINGS = {"analytics", "autostage", "remote", "url", "endpointurl", "region", "version_aware"}
MOST_SHOWN = 5


@contextmanager
def of(address: str, revision: str) -> Iterator[None]:
    """A block in a clone of a repository at a revision, which is removed afterwards.

    Prints the commit, and what of its code is not this project's. Raises UserError if Git cannot clone it or does not
    know the revision, if it is not a project of this kind, and if it needs other packages than those installed.
    """
    here = Path.cwd()
    print(f"verify: cloning {address}", flush=True)
    with tempfile.TemporaryDirectory(prefix="perennial-clone-") as temporary:
        place = Path(temporary) / "clone"
        programs.output("git", "clone", "--quiet", "--no-checkout", "--", address, str(place), remedy="another address")
        with chdir(place):
            commit = resolve(revision)
            programs.output("git", "checkout", "--quiet", "--detach", commit)
            check_tracked()
            check_packages()
            print(f"verify: commit {commit[:12]} of {address}: {describe_code(place)}", flush=True)
            try:
                yield
            finally:  # what a message names, where the user is
                if repetition.LOG.is_file() and not repetition.LOG.is_symlink():
                    files.write_text(here / repetition.LOG, repetition.LOG.read_text(errors="replace"))


def resolve(revision: str) -> str:
    """The commit of a revision of the clone in the current folder. A branch is that of the address."""
    for name in (f"origin/{revision}", revision):
        if commit := programs.commit_of(name):
            return commit
    raise UserError(Fault("--rev", repr(revision), "unknown", allowed="a commit, a branch or a tag of the address"))


def check_packages() -> None:
    """Raise UserError if the clone in the current folder is not of this project, or needs other packages than here."""
    for name in (params.FILE, Path("dvc.yaml"), Path("pipeline/__main__.py"), LOCKED_PACKAGES):
        if not name.is_file():
            raise errors.missing(name, "an address of a Perennial project")
    if LOCKED_PACKAGES.read_bytes() != (PROJECT / LOCKED_PACKAGES).read_bytes():
        reason, remedy = "not those installed here", "make setup in a clone of it, then perennial verify there"
        raise UserError(Fault(str(LOCKED_PACKAGES), "other packages", "machine", reason, remedy=remedy))


def describe_code(place: Path) -> str:
    """A sentence that says whether a project has this project's code."""
    here, there = code(PROJECT), code(place)
    others = sorted(path for path in here.keys() | there.keys() if here.get(path) != there.get(path))
    if not others:
        return "its code is that of this project here"
    more = f" … and {len(others) - MOST_SHOWN} more" if len(others) > MOST_SHOWN else ""
    return f"not as in this project here: {', '.join(others[:MOST_SHOWN])}{more}"


def code(project: Path) -> dict[str, str]:
    """Path → SHA-256 of each file of a project that makes a run, and of what a stage could import."""
    inside = [path for name in record.CODE for path in (project / name, *(project / name).rglob("*"))]
    beside = [path for pattern in BESIDE for path in project.glob(pattern) if path.parent.name != "tests"]
    paths = {path for path in (*inside, *beside) if path.is_file() and path.parent.name != "__pycache__"}
    return {path.relative_to(project).as_posix(): files.sha256(path) for path in paths if not path.is_symlink()}


def checked() -> tuple[Params, StageHashes]:
    """The params and the dvc.lock of the clone in the current folder, whose outputs nobody has to have.

    The user's own photos and weights come from its remote. Raises UserError if dvc.lock is not of its commit, if an
    output in the commit is not that of dvc.lock, if an input is in no commit, and if it cannot run here.
    """
    config, stage_hashes = params.load(), dvc_lock.read()
    errors.raise_if_any(validity.faults(config, machine.read()))
    errors.raise_if_any(folder.outputs_outside(stage_hashes))
    outs = dvc_lock.outputs(stage_hashes)
    unneeded = {*outs, config.paths.inbox, config.paths.pretrained}
    errors.raise_if_any(folder.lock_differences(config, stage_hashes, unneeded, folder.ANY_STAGE))
    outputs, _ = integrity.inspect_outputs(outs, {})
    remedy = "whoever publishes it: perennial repro, git commit"
    errors.raise_if_any(
        Fault(output.path, "not as in dvc.lock", "differs", remedy=remedy) for output in outputs if output.differs
    )
    inputs, inbox = repetition.unversioned(config), config.paths.inbox
    if config.data.source in ("inbox", "folder") and not files.visible(Path(inbox)):
        inputs["download"] = inbox  # what Git does not have is not in a clone
    remedy = "whoever publishes it: dvc add, git commit, dvc push"
    errors.raise_if_any(
        Fault(path, "in no commit", "missing", f"{stage} reads it", remedy=remedy) for stage, path in inputs.items()
    )
    fetch(repetition.user_files(config))
    return config, stage_hashes


def check_tracked() -> None:
    """Raise UserError for files of the commit that nobody can review, or through which others would be written.

    These are links (but for this project's own), submodules, compiled files, and DVC's files of one machine.
    """
    faults = []
    for line in programs.output("git", "ls-files", "--stage", "-z").split("\0")[:-1]:
        facts, _, name = line.partition("\t")
        mode, path, own = facts.split()[0], Path(name), PROJECT / name
        is_own_link = mode == "120000" and own.is_symlink() and own.readlink() == path.readlink()
        is_compiled = path.suffix in COMPILED or "__pycache__" in path.parts
        if (mode in ("120000", "160000") and not is_own_link) or is_compiled or name.startswith(LOCAL):
            value = "a link, a submodule, a compiled file, or one of DVC on one machine"
            faults.append(Fault(name, value, "value", remedy="whoever publishes it: git rm --cached"))
    errors.raise_if_any(faults)


def check_remotes() -> None:
    """Raise UserError for a setting of DVC in the commit by which DVC would read or write other files of the user."""
    settings = configparser.ConfigParser(interpolation=None)
    with schema.reading(CONFIG, f"git checkout {CONFIG}", configparser.Error):
        settings.read_string(CONFIG.read_text(encoding="utf-8") if CONFIG.is_file() else "")
    names = [(section, key) for section in settings.sections() for key in settings[section]]
    errors.raise_if_any(
        Fault(str(CONFIG), f"{section}.{key}", "value", allowed=", ".join(sorted(SETTINGS)))
        for section, key in names
        if key not in SETTINGS or not section.strip("'").startswith(("core", "remote "))
    )


def fetch(inputs: Sequence[str]) -> None:
    """Fetch the user's own photos and weights from the remote into DVC's cache. They are the outputs of these files.

    Raises UserError if one of them would be written to another folder.
    """
    if not inputs:
        return
    check_remotes()
    print(f"verify: dvc fetch {' '.join(inputs)}", flush=True)
    programs.dvc("fetch", *inputs, remedy="ask whoever publishes it for dvc push")
    cache = integrity.cache_folder()
    for file in map(Path, inputs):
        with schema.reading(file, f"git checkout {file}", KeyError, TypeError, AttributeError):
            content = document.read(file)
            outs = {str(out["path"]): str(out["md5"]) for out in content["outs"]}
            is_plain = content.keys() <= {"outs", "md5"} and all(Path(path).name == path for path in outs)
            names = [
                str(entry["relpath"])
                for md5 in outs.values()
                if md5.endswith(".dir")
                for entry in json.loads(integrity.object_of(cache, md5).read_bytes())
            ]
        if not is_plain or any(Path(name).is_absolute() or ".." in Path(name).parts for name in names):
            raise UserError(Fault(str(file), "names a file in another folder", "value", remedy="another repository"))
