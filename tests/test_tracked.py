"""No output depends on a setting that DVC does not track: each setting is tracked, or a test shows no effect."""

import ast
import json
import sys
import tarfile
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.workspace import STAGES
from pipeline.base import files
from pipeline.config import params
from pipeline.sources import synthetic
from tests.conftest import PROJECT
from tests.helpers import starts
from tests.helpers.modules import closure
from tests.helpers.projects import stages_folder
from tests.helpers.settings import LEAVES, keys, tracked

OTHERWISE: dict[str, Any] = {  # not tracked: other values; with all of them at once, all outputs keep their bytes
    "paths.inbox": "elsewhere/inbox",
    "data.url": "file://{folder}/the same archive.tgz",
    "run.save_every_epochs": 1, "run.keep_states": 1, "run.workers": 3, "run.residency": "disk", "run.log_steps": 1,
    "run.checkpoint_seconds": 1, "run.epoch_checkpoint_seconds": 0, "run.timeout_seconds": 77,
    "run.checkpoint_copy": "elsewhere/copies",
}  # fmt: skip
ELSEWHERE = {  # not tracked; the test that compares bytes
    "run.launcher": "test_nodes.py::test_trainings_at_the_same_time_do_not_collide",
    "run.nodes": "test_nodes.py::test_two_nodes_write_the_bytes_of_one",
    "run.node_rank": "test_nodes.py::test_two_nodes_write_the_bytes_of_one",
    "run.rendezvous": "test_nodes.py::test_two_nodes_write_the_bytes_of_one",
    "run.stream_cache_gb": "test_stream.py::test_whole_sharded_and_streamed_images_give_the_same_weights",
    "run.min_processes": "test_nodes.py::test_a_lost_node_costs_no_byte",
    "run.max_restarts": "test_interruption.py::test_an_interrupted_run_goes_on_to_the_same_bytes",
}
OTHERS_REFUSED = "test_packed_images_of_another_size_or_fit_than_the_params_say_are_refused"
IN_A_STAGE = {  # not tracked for this stage, but for an earlier one; the test that shows no effect
    ("split", "prepare.fit"): "test_fitting.py::test_split_names_the_remedy_and_writes_the_same_bytes",
    **{("evaluate", f"prepare.{key}"): f"test_prepare.py::{OTHERS_REFUSED}" for key in ("size", "fit")},
    **{  # the backend moves bytes
        ("evaluate", leaf): "test_evaluate.py::test_neither_processes_nor_the_precision_change_a_byte"
        for leaf in ("train.backend", "run.processes")
    },
}


RECORDER = """
    import json, sys
    from argparse import Namespace
    from pathlib import Path
    from pipeline.__main__ import work_of
    from pipeline.config import params

    names, reads, plain = {}, set(), params.Section.__getattribute__

    def walk(section, prefix):
        names[section] = prefix
        for name, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, params.Section):
                walk(field.annotation, f"{prefix}{name}.")

    walk(params.Params, "")
    fields = {name for section in names for name in section.model_fields}

    def checking(frame):
        return frame and (Path(frame.f_code.co_filename).name == "validity.py" or checking(frame.f_back))

    def note(self, name):
        if name in fields and not checking(sys._getframe(1)):
            reads.add(names[type(self)] + name)
        return plain(self, name)

    params.Section.__getattribute__ = note
    for stage in sys.argv[1:]:
        reads.clear()
        # For a head that is trained, no process computes features.
        command = "features" if stage == "features" else "rank"
        if status := work_of(Namespace(command=command, stage=stage))():
            sys.exit(status)
        Path(f"{stage}.json").write_text(json.dumps(sorted(reads)))
"""


def pipeline(folder: Path, changes: dict[str, Any]) -> Path:
    """A folder with the outputs of all stages for a small archive, and the list of settings that each stage has read.

    Reads of checks/validity.py, and of what it calls, do not count: it decides whether a stage runs, not which bytes
    it writes.
    """
    archive = folder.parent / "flowers.tgz"
    values = {
        "data.source": "archive", "data.url": f"file://{archive}", "data.sha256": files.sha256(archive),
        "split.phash_distance": 0, "train.model": "squeezenet1_1", "run.workers": 1, **changes,
    }  # fmt: skip
    values["data.url"] = values["data.url"].format(folder=folder.parent).replace(" ", "%20")
    stages_folder(folder, **{leaf.replace(".", "__"): value for leaf, value in values.items()})
    done = starts.run([sys.executable, "-c", textwrap.dedent(RECORDER), *STAGES], cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of all stages with unchanged settings."""
    top = tmp_path_factory.mktemp("tracked")
    (top / "flowers").mkdir()
    synthetic.draw(top / "flowers", count=30, size=40, seed=0, workers=2)
    with tarfile.open(top / "flowers.tgz", "w:gz") as archive:
        archive.add(top / "flowers", "flowers")
    (top / "the same archive.tgz").write_bytes((top / "flowers.tgz").read_bytes())
    return pipeline(top / "usual", {})


def outputs(folder: Path) -> dict[str, str]:
    """The SHA-256 of each output file, by the name of its path in the params."""
    tops = {name: folder / getattr(params.Paths, name) for name in params.Paths.__class_vars__}
    return {
        f"{name}: {path.relative_to(top)}": files.sha256(path)
        for name, top in tops.items()
        if name not in {"runs", "archives", "states"}
        for path in ([top] if top.is_file() else sorted(top.rglob("*")))
        if path.is_file()
    }


def test_a_setting_is_tracked_or_shown_to_change_nothing() -> None:
    """A new setting is in dvc.yaml, or in a table above with a test that is there."""
    tracked_ones = {leaf for stage in STAGES for leaf in tracked(stage)}
    assert {*OTHERWISE, *ELSEWHERE} == set(LEAVES) - tracked_ones  # of paths.inbox DVC tracks the content
    assert {leaf for _, leaf in IN_A_STAGE} <= tracked_ones
    # The pipelines of these tests draw no image, so no test below sees that download reads them.
    assert {leaf for leaf in LEAVES if leaf.startswith("data.synthetic.")} <= tracked("download")
    for name in [*ELSEWHERE.values(), *IN_A_STAGE.values()]:
        file, _, test = name.partition("::")
        assert f"\ndef {test}(" in (PROJECT / "tests" / file).read_text(), name


@pytest.mark.slow("a whole pipeline more; make test has the settings that each stage reads")
def test_settings_that_are_not_tracked_change_no_byte(usual: Path) -> None:
    """With all of them changed at once, each output of each stage is the same."""
    before, after = outputs(usual), outputs(pipeline(usual.parent / "other", OTHERWISE))
    assert after == before
    assert {name.partition(":")[0] for name in before} == {
        "images", "weights", "split", "kept", "packed", "features", "models", "metrics", "reports",
    }  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_reads_no_setting_that_it_does_not_track(stage: str, usual: Path) -> None:
    """Each setting that a stage has read is tracked for this stage, or a test shows that it has no effect.

    DVC's run cache compares no key called size or nfiles inside a table: such a key is tracked by its full name.
    """
    reads = set(json.loads((usual / f"{stage}.json").read_text())) & set(LEAVES)
    assert reads - tracked(stage) - {*OTHERWISE, *ELSEWHERE} == {leaf for name, leaf in IN_A_STAGE if name == stage}
    assert reads & tracked(stage)
    assert {leaf for leaf in tracked(stage) if leaf.rpartition(".")[2] in ("size", "nfiles")} <= keys(stage)


@cache
def attributes(path: Path) -> frozenset[str]:
    """The names of all attributes in a file."""
    nodes = ast.walk(ast.parse((PROJECT / path).read_text()))
    return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute))


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in ("card", "report")])
def test_a_stage_uses_every_setting_that_it_tracks(stage: str) -> None:
    """The name of each tracked setting is in the code of the stage: else a change would run it for nothing.

    The report and the card show each one that they track: test_report.py and test_card.py compare them.
    """
    names = {
        name
        for path in closure(f"pipeline.stages.{stage}")
        if path.parts[1] != "checks" and path != Path("pipeline/config/params.py")
        for name in attributes(path)
    }
    unused = {leaf for leaf in tracked(stage) if leaf.rpartition(".")[2] not in names}
    assert unused <= {"split.fractions.train"}  # the rest after val and test
