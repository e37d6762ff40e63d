"""Shared by benchmarks and tests: photos, copies of the project with other params, and prepared images."""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ruamel.yaml import YAML

from benchmarks.harness import measuring
from pipeline.base import files, linux
from pipeline.base.errors import Fault, UserError
from pipeline.checks import machine
from pipeline.config import params
from pipeline.data import corrections
from pipeline.sources import synthetic
from pipeline.studies import workcopy
from pipeline.versioning import identity

STAGE_TABLES: Mapping[str, Any] = YAML(typ="safe", pure=True).load(Path(__file__).parents[2] / "dvc.yaml")["stages"]
STAGES = tuple(STAGE_TABLES)
Changes = Mapping[str, Mapping[str, Any]]  # section → key → value
NEEDED = ("pipeline", "requirements", "docker", "params.yaml", "dvc.yaml")  # what a stage reads
READ = STAGES[: STAGES.index("prepare") + 1]  # the stages whose outputs a store keeps
LEFT_OUT = ("tests/", "docs/", "results/", "dvc.lock")  # a copy begins without a run
ONE_PROCESS: Changes = {"train": {"device": "cpu", "precision": "fp32", "parallel": "single"}}  # on every machine


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """A new folder, whose path has no link. It is removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        yield Path(folder).resolve()


# ---------------------------------------------------------------- copies of the project


def environment(base: Path) -> dict[str, str]:
    """Environment variables: this environment's programs, no modules of this checkout, DVC's site cache in `base`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    python_path = os.pathsep.join(folder for folder in folders if folder and not (Path(folder) / "pipeline").is_dir())
    return {**os.environ, "PATH": path, "PYTHONPATH": python_path, "DVC_SITE_CACHE_DIR": str(base / "site")}


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder` to its end."""
    environ = environment(folder.parent)
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def run_checked(folder: Path, *command: str) -> None:
    """The same; raises RuntimeError with its output if it fails."""
    done = call(folder, *command)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def run_stage(folder: Path, stage: str) -> None:
    """Run a stage. Raises RuntimeError with its output if it fails."""
    run_checked(folder, sys.executable, "-m", "pipeline", stage)


def declared(stage: str) -> list[str]:
    """The outputs and metrics of a stage in dvc.yaml."""
    entries = [entry for kind in ("outs", "metrics") for entry in STAGE_TABLES[stage].get(kind, [])]
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def set_params(folder: Path, params: Changes) -> None:
    """Change params of a copy."""
    raw = YAML(typ="safe", pure=True).load(folder / "params.yaml")
    for section, changes in params.items():
        raw[section].update(changes)
    YAML().dump(raw, folder / "params.yaml")


def create_repository(folder: Path, params: Changes | None = None, source: Path = Path()) -> None:
    """Copy the files of the project `source` as they are now, without tests and documents, into a new repository."""
    names = [name for name in workcopy.project_files(source) if not name.as_posix().startswith(LEFT_OUT)]
    workcopy.copy_files(names, source, folder)
    files.write_text(folder / corrections.FILE, corrections.EMPTY)  # those of the source name its own photos
    set_params(folder, params or {})
    run_checked(folder, "git", "init", "--quiet")


def create(folder: Path, *params: Changes) -> None:
    """Copy to `folder` what the stages need, with these params. It is no repository: it needs neither git nor DVC."""
    needed = [path for name in NEEDED for path in (Path(name), *Path(name).rglob("*"))]
    workcopy.copy_files([path for path in needed if path.is_file() and path.suffix != ".pyc"], Path(), folder)
    files.write_text(folder / corrections.FILE, corrections.EMPTY)
    if different := machine.other_packages(Path()):  # a stage would refuse them; a GPU machine has its own
        print(f"benchmarks: not the packages of the lock: {', '.join(different[:3])} … ({len(different)} in all)")
        files.write_text(folder / files.LOCKED_PACKAGES, "# The report of the benchmark names the packages.\n")
    for changes in params:
        set_params(folder, changes)


def create_prepared(folder: Path, *params: Changes, store: Path | None = None) -> None:
    """The same, with the stages before training run. What `store` has of another copy with these params is copied."""
    create(folder, *params)
    prepare(folder, store)


def prepare(folder: Path, store: Path | None = None) -> None:
    """Run the stages before training. The outputs of those in READ come from `store` if it has them, or go there.

    It has them if the same code and the same versions of the libraries made them with the same params.
    """
    for stage in STAGES[: STAGES.index("train")]:
        if store is None or stage not in READ:
            run_stage(folder, stage)
            continue
        entry = store / outputs_digest(folder, stage)[:16]
        if not entry.is_dir():
            run_stage(folder, stage)
            with files.atomic_folder(entry) as outputs:
                for name in declared(stage):
                    copy_path(folder / name, outputs / name)
        shutil.copytree(entry, folder, dirs_exist_ok=True)


def outputs_digest(folder: Path, stage: str) -> str:
    """The identity of the outputs of a stage in READ. Its images are those of data.sha256, or they are drawn."""
    before = READ[: READ.index(stage) + 1]
    with chdir(folder):  # dvc.yaml says which settings and which code decide
        decisive = identity.parts(
            params.load(), before, {}, identity.code(before), versions=measuring.machine()["versions"], stage=stage
        )
    return identity.digest(decisive)


def copy_path(source: Path, target: Path) -> None:
    """Copy a file or a folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


def events(folder: Path) -> list[tuple[str, int, float]]:
    """TensorBoard's events of all runs in a copy: (tag, step, time), in the order of writing."""
    with warnings.catch_warnings():  # its import uses interfaces that its dependencies have deprecated
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    return [
        (value.tag, event.step, event.wall_time)
        for path in sorted(folder.glob("runs/*/events*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def ends_of_epochs(folder: Path) -> list[float]:
    """The end of each epoch's validation, of all runs in a copy: seconds since 1970."""
    return [time for tag, _, time in events(folder) if tag == "accuracy/val"]


def forget_runs(folder: Path) -> None:
    """Remove the runs, so that the next one starts again."""
    files.remove(folder / "runs")


# ---------------------------------------------------------------- photos


@dataclass(frozen=True)
class Photos:
    """An archive of photos."""

    archive: Path
    sha256: str
    description: str

    @property
    def facts(self) -> dict[str, str]:
        """What a report records of the photos."""
        return {"photos": self.description, "sha256": self.sha256}

    @property
    def params(self) -> Changes:
        """The params that read the archive. Near duplicates are not grouped in drawn flowers: most of them are."""
        data = {"source": "archive", "url": f"file://{self.archive}", "sha256": self.sha256}
        return {"data": data, **({"split": {"phash_distance": 0}} if self.description.startswith("drawn") else {})}


def photos(options: argparse.Namespace, base: Path, count: int, side: int) -> Photos:
    """The archive that the options name, or one of drawn flowers. Raises UserError if there is no such archive."""
    if not options.archive:
        return draw_photos(base / "drawn.tar", count, side)
    archive = Path(unquote(options.archive.removeprefix("file://"))).resolve()
    if not archive.is_file():
        allowed = "file:// and the path of an archive"
        raise UserError(Fault("--archive", options.archive, "missing", "no such file", allowed))
    sha256 = files.sha256(archive)
    if options.sha256 not in ("", sha256):
        raise UserError(
            Fault("--sha256", options.sha256, "differs", f"it is not that of {archive}", f"{sha256}, or none")
        )
    return Photos(archive, sha256, archive.name)


def draw_photos(archive: Path, count: int, side: int) -> Photos:
    """Write an archive of drawn flowers, saved as JPEG, in class folders."""
    kinds = list(synthetic.KINDS)

    def jpeg(index: int) -> bytes:
        content = io.BytesIO()
        synthetic.image(kinds[index % len(kinds)], side, 0, index).save(content, "JPEG", quality=90)
        return content.getvalue()

    with ThreadPoolExecutor(linux.usable_cores()) as pool, tarfile.open(archive, "w") as tar:
        for index, content in enumerate(pool.map(jpeg, range(count))):
            entry = tarfile.TarInfo(f"flowers/{kinds[index % len(kinds)]}/{index:05}.jpg")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return Photos(archive, files.sha256(archive), f"drawn flowers: {count} of {side} pixels, as JPEG")
