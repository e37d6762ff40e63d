"""A clone in which nothing has run: `perennial verify` repeats there what somebody else has published.

Nobody has to have the outputs: dvc.lock has their hashes. The code may be somebody else's, and this check is a part of
it. So first compare the code with a version that you trust (docs/reproducibility.md). Refused is what such a comparison
of texts does not show, and what would read or write other files of the user.
"""

import configparser
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

from pipeline.attest import folder, repetition
from pipeline.base import errors, files, schema
from pipeline.base.errors import Fault, UserError, missing
from pipeline.checks import machine, validity
from pipeline.config import document, params
from pipeline.config.params import Params
from pipeline.versioning import dvc_lock, integrity, programs
from pipeline.versioning.dvc_lock import StageHashes

OWN_LINKS, THEIR_TARGET = Path("pipeline/tracked"), Path("../../params.yaml")
OWN_PACKAGES = {"pipeline", "benchmarks", "tests"}
COMPILED = (".pyc", ".so", ".pth")
LOCAL = (".dvc/config.local", ".dvc/tmp/", ".dvc/cache/")  # what DVC writes on one machine
CONFIG = Path(".dvc/config")
SETTINGS = {"analytics", "autostage", "remote", "url", "endpointurl", "region", "version_aware"}
REMEDY = "ask whoever publishes it for dvc push; or put the same files there, then dvc add"


def is_here(stage_hashes: StageHashes) -> bool:
    """Whether this folder is such a clone: of the outputs, it has none that Git does not have.

    Raises UserError for an output outside this folder.
    """
    errors.raise_if_any(folder.outputs_outside(stage_hashes))
    outs = dvc_lock.outputs(stage_hashes)
    tracked = {*programs.output("git", "ls-files", "-z", "--", *outs).split("\0")}
    return not any(Path(path).exists() for path in outs if path not in tracked)


def checked() -> tuple[Params, StageHashes]:
    """The params and the dvc.lock of the clone in the current folder.

    The user's own photos and weights come from its remote. Raises UserError for files that nobody can review, for other
    packages than its own, for a command that is not this project's, if dvc.lock is not of its commit, if an output in
    the commit is not that of dvc.lock, if an input is in no commit, and if it cannot run here.
    """
    print("verify: a clone in which nothing has run: its code, perhaps somebody else's, runs as your user", flush=True)
    check_tracked()
    config, stage_hashes = params.load(), dvc_lock.read()
    here = replace(machine.read(), other_packages=machine.other_packages(Path()))  # than the lock of the clone says
    errors.raise_if_any(validity.faults(config, here))
    errors.raise_if_any(folder.commit_differences(stage_hashes))
    outs = dvc_lock.outputs(stage_hashes)
    unneeded = {*outs, config.paths.inbox, config.paths.pretrained}
    errors.raise_if_any(folder.lock_differences(config, stage_hashes, unneeded, folder.ANY_STAGE))
    errors.raise_if_any(folder.foreign_commands(stage_hashes))
    outputs, _ = integrity.inspect_outputs(outs, {})
    remedy = "whoever publishes it: perennial repro, git commit"
    errors.raise_if_any(
        Fault(output.path, "not as in dvc.lock", "differs", remedy=remedy) for output in outputs if output.differs
    )
    inputs, inbox = repetition.unversioned(config), config.paths.inbox
    if config.data.source in ("inbox", "folder") and not files.visible(Path(inbox)):
        inputs["download"] = inbox  # what Git does not have is not in a clone
    copy = "copy it into this folder (data.source: inbox), "  # dvc add takes nothing else
    remedy = "dvc add, git commit, dvc push"
    errors.raise_if_any(
        Fault(path, "in no commit", "missing", f"{stage} reads it",
              remedy=f"whoever publishes it: {'' if folder.is_inside(path) else copy}{remedy}")
        for stage, path in inputs.items()
    )  # fmt: skip
    fetch(repetition.user_files(config))
    return config, stage_hashes


def check_tracked() -> None:
    """Raise UserError for files of the commit that nobody can review, or through which others would be read or written.

    These are links (but for this project's own), submodules, compiled files, DVC's files of one machine, and files that
    Python would import instead of a library.
    """
    faults = []
    for line in programs.output("git", "ls-files", "--stage", "-z").split("\0")[:-1]:
        facts, _, name = line.partition("\t")
        mode, path = facts.split()[0], Path(name)
        is_compiled = path.suffix in COMPILED or "__pycache__" in path.parts
        if (mode in ("120000", "160000") and not is_own_link(path)) or is_compiled or name.startswith(LOCAL):
            value = "a link, a submodule, a compiled file, or one of DVC on one machine"
            faults.append(Fault(name, value, "value", remedy="whoever publishes it: git rm --cached"))
        elif module := hidden_library(path):
            value, remedy = f"Python would import it instead of {module}", "whoever publishes it: git mv"
            faults.append(Fault(name, value, "value", remedy=remedy))
    errors.raise_if_any(faults)


def is_own_link(path: Path) -> bool:
    """Whether a link is one of this project."""
    return path.parent == OWN_LINKS and path.is_symlink() and path.readlink() == THEIR_TARGET


def hidden_library(path: Path) -> str:
    """The library that Python would not find, because it takes this file of the current folder; empty if there is none.

    `python -m pipeline` looks for modules in the current folder first.
    """
    is_package = path.name == "__init__.py" and len(path.parts) == 2
    name = path.parts[0] if is_package else path.stem if path.suffix == ".py" and len(path.parts) == 1 else ""
    if not name or name in OWN_PACKAGES:
        return ""
    places = [place for place in sys.path if Path(place).resolve() != Path.cwd().resolve()]
    return name if name in sys.stdlib_module_names or PathFinder.find_spec(name, places) else ""


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
    programs.dvc("fetch", *inputs, remedy=REMEDY)
    cache = integrity.cache_folder()
    for file in map(Path, inputs):
        with schema.reading(file, f"git checkout {file}", KeyError, TypeError, AttributeError):
            content = document.read(file)
            outs = {str(out["path"]): str(out["md5"]) for out in content["outs"]}
            if not all(integrity.object_of(cache, md5).is_file() for md5 in outs.values()):  # of no remote: no error
                raise missing(file.with_suffix(""), REMEDY, "not in a remote of DVC")
            is_plain = content.keys() <= {"outs", "md5"} and all(Path(path).name == path for path in outs)
            names = [
                str(entry["relpath"])
                for md5 in outs.values()
                if md5.endswith(".dir")
                for entry in json.loads(integrity.object_of(cache, md5).read_bytes())
            ]
        if not is_plain or any(Path(name).is_absolute() or ".." in Path(name).parts for name in names):
            raise UserError(Fault(str(file), "names a file in another folder", "value", remedy="another repository"))
