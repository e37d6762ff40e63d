"""Reads the params, figures and predictions of a revision: a commit, branch, tag or experiment, or the files here.

Git has params, metrics and dvc.lock; DVC's cache, or its remote, has the tables.
"""

import csv
import io
import json
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dvc.api import DVCFileSystem, exp_show
from dvc.exceptions import DvcException
from fsspec.implementations.dirfs import DirFileSystem

from pipeline.base.errors import Fault, UserError
from pipeline.config import document, params
from pipeline.config.params import Paths
from pipeline.data import split_report
from pipeline.evaluation import figures, metrics
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from pipeline.evaluation.metrics import Share
from pipeline.versioning import dvc_lock, programs

HERE = "workspace"  # DVC's word for what is in this folder now
REMEDY = "name another revision, or make the file again there (perennial repro)"
AFTER_FIGURES = ("export", "card", "report")  # stages that decide no figure: they may be of an earlier run
FAILED, OTHER_PARAMS, NO_RUN = "failed", "not run with these params", "no run"
IMAGES = {"accuracy": "test", "val_accuracy": "val"}  # a figure that is a share of images → the part that these are
WITHOUT_FILES = (FAILED, "queued", "running")  # the states of an experiment whose files are those of its commit
Table = list[dict[str, str]]


@dataclass(frozen=True)
class Revision:
    """The params and figures of a revision. A state that is not empty is the reason why it has no figures."""

    name: str
    state: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)  # section.key → value
    # Of train.json; of eval.json, if the model was tested; seconds and images_per_second, if they are known here.
    figures: Mapping[str, float] = field(default_factory=dict)
    images: Mapping[str, int] = field(default_factory=dict)  # per split; 0 if the table cannot be had
    model: str = ""  # MD5 of the weights

    def share(self, key: str) -> Share | None:
        """A figure with its 95 % interval, if it is a share of images whose number is known."""
        images = self.images.get(IMAGES.get(key, ""))
        if key not in self.figures or not images:
            return None
        return metrics.share(round(self.figures[key] * images), images)


def experiments() -> dict[str, tuple[str, str]]:
    """Name of each experiment that began at this commit → its revision and state. The oldest comes first."""
    rows = _ask_dvc(exp_show, "the experiments")
    return {
        str(row["Experiment"] or row["rev"]): (str(row["rev"]), str(row["State"] or "").lower())
        for row in reversed(rows)
        if row["typ"] != "baseline"
    }


def read(name: str, experiments: Mapping[str, tuple[str, str]], paths: Paths) -> Revision:
    """The revision of this name; `experiments`: of that function. Raises UserError if there is none."""
    revision, state = experiments.get(name, (name, ""))
    source = open_revision(revision)
    raw = _params(source, revision)
    settings = dict(document.leaves(document.with_defaults(raw, params.Params().model_dump(mode="json"))))
    if state in WITHOUT_FILES:
        return Revision(name, state, settings)
    with tempfile.TemporaryDirectory() as temporary:
        lock = Path(temporary) / dvc_lock.LOCK.name
        text = _text(source, dvc_lock.LOCK.as_posix())
        lock.write_text(text, encoding="utf-8")
        if not text:
            return Revision(name, NO_RUN, settings)
        with _named(lock.name, name):
            stages = dvc_lock.read(lock)
            ran_with = dvc_lock.params(lock, without=AFTER_FIGURES)
        outs = dvc_lock.outputs(stages)
    texts = {kind: _text(source, str(figures.path(paths.metrics, kind))) for kind in figures.FILES}
    weights = f"{paths.models}/model.safetensors"
    model = outs.get(weights, "")
    has_output = {kind: bool(text) and str(figures.path(paths.metrics, kind)) in outs for kind, text in texts.items()}
    # After a training that ran alone, eval.json is missing, or is of the model before.
    of_model = stages.get("evaluate", {}).get("deps", {}).get(weights, model) == model
    is_tested = has_output[EvalFigures] and of_model
    if not (has_output[TrainFigures] or is_tested):
        return Revision(name, NO_RUN, settings)
    if any(value != _at(raw, key) for key, value in ran_with.items()):
        return Revision(name, OTHER_PARAMS, settings)
    by_name: dict[str, float] = {}
    for kind, text in texts.items():
        if text and (is_tested or kind is TrainFigures):
            file = f"{figures.path(paths.metrics, kind)} of {name}"
            by_name |= figures.by_name(figures.parse(text, kind, file, REMEDY))
    images = figures.image_counts(_table(source, f"{paths.metrics}/{split_report.IMAGES}"))
    return Revision(name, "", settings, by_name | _timing(Path(paths.runs), model), images, model)


def table(name: str, experiments: Mapping[str, tuple[str, str]], paths: Paths, file: str) -> Table:
    """The rows of a table of metrics of a revision; none if neither DVC's cache nor its remote has it."""
    revision, _ = experiments.get(name, (name, ""))
    return _table(open_revision(revision), f"{paths.metrics}/{file}")


def open_revision(revision: str) -> DVCFileSystem:
    """The files of a revision. Raises UserError if it is none."""

    def files() -> DVCFileSystem:
        if not revision:  # DVC would take the files here
            raise DvcException("a revision without a name")
        below = "" if revision == HERE else programs.output("git", "rev-parse", "--show-prefix").rstrip("\n")
        source = DVCFileSystem(rev=None if revision == HERE else revision, subrepos=bool(below))
        try:
            _ = source.repo  # DVC looks for the revision only now
        except (AttributeError, ValueError):  # DVC expects no name of a file or a tree, or of thousands of letters
            raise DvcException("not a commit") from None
        return DirFileSystem(below.rstrip("/"), source) if below else source  # a commit has the whole repository

    return _ask_dvc(files, f"{revision:.100}" or "''")


def _ask_dvc(question: Callable[[], Any], what: str) -> Any:
    """The answer of DVC. Raises UserError if it has none."""
    try:
        with _errors_of_connections():
            return question()
    except (DvcException, OSError) as error:
        reason = f"no {error.filename} there" if isinstance(error, OSError) and error.filename else str(error)
        allowed = f"{HERE}, or a commit, branch, tag or experiment (dvc exp show names them)"
        raise UserError(Fault(what, reason, "unknown", allowed=allowed)) from None


@contextmanager
def _errors_of_connections() -> Iterator[None]:
    """Ignore SIGPIPE inside the block, so that a connection that a remote closes is an error.

    A command that answers has the default of SIGPIPE: it ends in silence, with the reader of its output.
    """
    handler = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, handler)


@contextmanager
def _named(file: str, revision: str) -> Iterator[None]:
    """Inside the block, the refusal of a copy names the file in the revision."""
    try:
        yield
    except UserError as error:
        faults = (replace(fault, key=f"{file} of {revision}", remedy=REMEDY) for fault in error.faults)
        raise UserError(*faults) from None


def bring(revision: str, path: str, target: Path) -> None:
    """Copy a file of a revision from Git, or from DVC's cache or remote. Raises UserError if there is none."""
    source = open_revision(revision)
    _ask_dvc(lambda: source.get_file(path, str(target)), revision)


def _text(source: DVCFileSystem, path: str) -> str:
    """The text of a file of a revision; empty if it cannot be had."""
    try:
        with _errors_of_connections(), source.open(path, "rb") as file:
            return str(file.read().decode())
    except (DvcException, OSError, UnicodeDecodeError):
        return ""


def _table(source: DVCFileSystem, path: str) -> Table:
    return list(csv.DictReader(io.StringIO(_text(source, path), newline="")))


def _params(source: DVCFileSystem, revision: str) -> dict[str, Any]:
    """The params of a revision, as they are in its file."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / params.FILE.name
        path.write_bytes(_ask_dvc(lambda: source.cat_file(params.FILE.as_posix()), revision))
        with _named(path.name, revision):
            raw = document.read(path)
    if not isinstance(raw, dict):
        key = f"{params.FILE} of {revision}"
        raise UserError(Fault(key, "not a table of settings", "damaged", remedy="take another revision"))
    return raw


def _at(table: Any, key: str) -> Any:
    """The value of a dotted key; None if there is none."""
    for part in key.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table


def _timing(runs: Path, model: str) -> dict[str, float]:
    """Seconds and images/s of the training of these weights, if it was on this machine and runs/ still has it."""
    for path in sorted(runs.glob("*/provenance.json")):
        try:
            provenance = json.loads(path.read_bytes())
            if model and provenance["model"] == model:
                found = {name: float(provenance[name]) for name in ("seconds", "images_per_second")}
                return {name: value for name, value in found.items() if value}  # a head that is solved trains on none
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}
