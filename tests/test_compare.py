"""`python -m pipeline compare`: the table of experiments and commits, and the test of two."""

import json
import os
import re
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.commands import compare
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.reporting.gallery import Album
from pipeline.running import terminal
from pipeline.sources import originals
from pipeline.studies import revisions, study
from pipeline.studies.revisions import Revision
from pipeline.studies.workcopy import WorkCopy
from tests.conftest import PHOTOS, change, read_params, write_params
from tests.helpers.measured import eval_figures, train_figures
from tests.helpers.pages import parsed
from tests.helpers.projects import call, commit, create_project
from tests.helpers.refusals import refuses

FIGURES = {"val_accuracy": 0.9, "accuracy": 0.8, "macro_f1": 0.75}
IMAGES = {"train": 400, "val": 50, "test": 100}
OURS, THEIRS = train_figures(0.25), eval_figures(0.5)


def revision(name: str, **changes: Any) -> Revision:
    """A measured revision."""
    known: dict[str, Any] = {"params": {"train.lr": 0.1, "train.ema": True}, "figures": FIGURES, "images": IMAGES}
    return Revision(name, **(known | changes))


def lines(*all_of: Revision) -> list[str]:
    """The table of these revisions."""
    rows = [list(compare.HEAD), *(compare.cells(one, all_of[0], compare.differing_params(all_of)) for one in all_of)]
    return list(terminal.columns(rows))


def test_only_changed_params_are_shown_and_accuracies_have_the_interval_of_their_images() -> None:
    """The first row has its value of each, the others what differs from it."""
    others = {"train.lr": 0.2, "train.ema": True}
    table = lines(revision("a"), revision("b", params=others), revision("c"))
    assert [line.split()[-1] for line in table] == ["params", "train.lr=0.1", "train.lr=0.2", "–"]
    row = compare.cells(revision("a"), revision("a"), [])
    assert row[1:4] == ["0.900 (0.786-0.957)", "0.800 (0.711-0.867)", "0.750"]  # Wilson's, 45 of 50 and 80 of 100
    assert compare.cells(revision("a", images={}), revision("a"), [])[1:3] == ["0.900", "0.800"]


def test_a_photo_of_a_revision_may_be_gone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then it has no picture, where a study refuses. Without any photo a line says why."""
    config = Params()
    assert compare.album(config, ["a.jpg"]).pictures == {}
    shutil.copy(next(PHOTOS.rglob("*.jpg")), "a.jpg")
    Path("data/images").mkdir(parents=True)
    Path("a.jpg").rename("data/images/a.jpg")
    assert set(compare.album(config, ["a.jpg", "gone.jpg"]).pictures) == {"a.jpg"}
    assert capsys.readouterr().err == ""
    with refuses(("data/images/gone.jpg", "missing")):
        study.album(WorkCopy(Path(), config), ["gone.jpg"])
    originals.write_manifest(Path("data/images"), Path("data/images"), 1)
    assert compare.album(config, ["a.jpg"]) == Album({}, {})
    assert capsys.readouterr().err.startswith("compare: ")


def test_what_is_not_known_is_a_dash_and_has_a_note() -> None:
    """Of a failed run its params are shown; of a model that was only trained, no test; times are those of runs/."""
    timing = {"seconds": 61.4, "images_per_second": 1234.5}
    first, failed = revision("a", figures=FIGURES | timing), Revision("b", "failed", {"train.lr": 9.0})
    trained, untimed = revision("c", figures={"val_accuracy": 0.9} | timing), revision("d")
    line = lines(first, failed)[2]
    assert line.split()[:2] == ["b", "failed"]
    assert "train.lr=9" in line
    assert "0.8" not in line
    assert compare.cells(first, first, [])[4:6] == ["61", "1,234"]
    assert compare.cells(trained, first, [])[1:4] == ["0.900 (0.786-0.957)", "–", "–"]
    assert compare.cells(untimed, first, [])[4:6] == ["–", "–"]
    assert list(compare.notes([first])) == []
    assert [len(list(compare.notes([first, one]))) for one in (failed, trained, untimed)] == [1, 1, 1]


def test_a_head_that_is_solved_has_no_images_per_second(tmp_path: Path) -> None:
    """It trains on no image in a step: a dash stands there, and no 0."""
    files.write_json(tmp_path / "a/provenance.json", {"model": "md5", "seconds": 1.5, "images_per_second": 0.0})
    timed = revision("a", figures=revisions._timing(tmp_path, "md5"))
    assert compare.cells(timed, timed, [])[4:6] == ["2", "–"]


def answers(*right: bool) -> list[dict[str, str]]:
    """Predictions of a model that has these images right."""
    return [{"path": f"{n}.png", "label": "a", "prediction": "a" if yes else "b"} for n, yes in enumerate(right)]


def test_of_two_the_better_one_is_named_and_whether_it_is_significant() -> None:
    """With the difference in points, p, and how many images each has right alone."""
    few, many = answers(*[True] * 3, *[False] * 7), answers(*[False] * 1, *[True] * 9)
    for names, tables in ((("x", "y"), (few, many)), (("y", "x"), (many, few))):
        found = compare.verdict(names, tables)
        assert (found.word, found.answer[:2]) == ("No", "y ")  # it is not significant
        assert re.findall(r"[\d.]*\.\d+", found.answer) == ["60.0", "0.07"]
    found = compare.verdict(("x", "y"), (answers(*[False] * 9), answers(*[True] * 9)))
    assert (found.word, found.answer[:21]) == ("Yes", "y is better than x: 1")
    assert re.findall(r"[\d.]*\.\d+", found.answer) == ["100.0", "0.0039"]
    assert not re.search("better|more", compare.verdict(("x", "y"), (few, few)).answer)


@pytest.mark.parametrize(
    ("of_x", "of_y", "is_tested"),
    [(2, 0, False), (2, 2, True), (2, 3, False), (5, 8, False), (6, 9, True)],
)
def test_without_the_same_test_images_there_is_no_test(of_x: int, of_y: int, is_tested: bool) -> None:
    """Of five images no difference is significant: with other images besides, it is refused. So it is without any."""
    tables = (answers(*[True] * of_x), answers(*[True] * of_y))
    assert (compare.reason_against_test(("x", "y"), tables) == "") is is_tested


def test_after_photos_were_added_the_images_of_both_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And after a label was corrected: how many are left out is said, and the figures are of the others."""
    of_x = answers(*[True] * 4, *[False] * 6)
    of_y = [{**row, "prediction": row["label"]} for row in answers(*[False] * 14)][::-1]
    of_y[-1] = {"path": "0.png", "label": "b", "prediction": "b"}
    common = compare.in_common((of_x, of_y))
    assert [[row["path"] for row in table] for table in common] == [[f"{n}.png" for n in range(1, 10)]] * 2
    history = [dict.fromkeys(("train_loss", "val_loss", "train_accuracy", "val_accuracy"), "0.5")]
    tables = {("x", figures.PREDICTIONS): of_x, ("y", figures.PREDICTIONS): of_y}
    monkeypatch.setattr(revisions, "table", lambda name, _, __, file: tables.get((name, file), history))
    monkeypatch.chdir(tmp_path)
    both = [revision(name, figures=FIGURES | {"exported_epoch": 1}) for name in "xy"]
    photo = PHOTOS / "daisy/10140303196_b88d3d6cec.jpg"
    shutil.copytree(photo.parent, tmp_path / "data/images")
    (tmp_path / "data/images" / photo.name).rename(tmp_path / "data/images/5.png")  # which y alone has right
    found = compare.compare_two(both[0], both[1], {}, params.Params())
    assert re.findall(r"[\d.]*\.\d+|\d+ of [xy]", "".join(found.lines())) == ["66.7", "0.031", "1 of x", "5 of y"]
    secret = revision("z", params={"data.url": "https://me:pa55@example.org/a?token=w0rd", "train.lr": 1})
    assert not re.search("pa55|w0rd", compare.as_json([secret], None))
    of_programs = json.loads(compare.as_json(both, found))
    assert [one["figures"]["macro_f1"] for one in of_programs["revisions"]] == [FIGURES["macro_f1"]] * 2
    assert {key: of_programs["test"][key] for key in ("images", "first_alone", "second_alone")} == {
        "images": 9, "first_alone": 0, "second_alone": 6,
    }  # fmt: skip
    assert found.page
    shown = parsed(found.page.read_text())
    assert [one.text.split()[-1] for one in shown.all("figure", class_="shot") if one.all("img")] == ["5.png"]
    rows = {name: cells for name, *cells in shown.table("Figures of both")}
    assert [cell.split()[0] for cell in rows["test accuracy"]] == ["0.3333", "1.0000", "+0.6667"]
    assert "macro F1" not in rows  # it is of other images
    assert "left out" in shown.one("section", id="better").text


def compared(folder: Path, *arguments: str, check: bool = True) -> str:
    """What the command prints."""
    done = call(folder, sys.executable, "-m", "pipeline", "compare", *arguments, check=check)
    assert "Traceback" not in done.stderr
    return done.stdout if check else done.stderr


@pytest.mark.nightly("several runs of DVC; make test has the table and the test of significance")
def test_real_experiments_are_compared(finished_copy: Path) -> None:
    """Of a commit, an experiment, one that waits and one that failed: figures, changed params, and time."""
    folder = finished_copy
    call(folder, "dvc", "exp", "run", "--queue", "--name", "broken", "-S", "train.batch_size=5000")
    call(folder, "dvc", "exp", "run", "--run-all", check=False)
    call(folder, "dvc", "exp", "run", "--name", "calm", "-S", "train.lr=0.001")
    call(folder, "dvc", "exp", "run", "--queue", "--name", "later", "-S", "train.lr=0.07")
    shutil.rmtree(folder / "metrics")  # figures are those of the revisions, not those that lie here
    table, _, below = compared(folder).partition("\n\n")
    row = {line.split()[0]: line for line in table.splitlines()}
    figures = json.loads(call(folder, "git", "show", "HEAD:metrics/eval.json").stdout)
    assert f"{figures['accuracy']:.3f} ({figures['accuracy_low']:.3f}-{figures['accuracy_high']:.3f})" in row["HEAD"]
    assert "–" not in row["HEAD"] + row["calm"]  # runs/ knows their times
    assert row["broken"].split()[1:] == ["failed", "train.batch_size=5000"]
    assert row["later"].split()[1:] == ["queued", "train.lr=0.07"]
    assert row["calm"].endswith("train.lr=0.001")
    (board,) = folder.glob("runs/squeezenet1_1-fp32-single-calm-????????")
    assert list(board.glob("events.out.*"))
    assert "dvc queue logs broken" in below
    assert "reports/compare.html" in compared(folder, "HEAD", "calm")
    assert f"{figures['accuracy']:.4f}" in (folder / "reports/compare.html").read_text()
    assert "nowhere: " in compared(folder, "nowhere", check=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without a run, as the working folder."""
    monkeypatch.chdir(create_project(tmp_path / "project"))
    return tmp_path / "project"


def revision_of(name: str) -> Revision:
    """What is known of a revision of the working folder."""
    return revisions.read(name, {}, params.load().paths)


def test_params_older_than_a_setting_are_those_of_the_run(folder: Path) -> None:
    """A file that lacks a newer setting has its default value in the table, and its figures are its own."""
    raw = read_params(folder / "params.yaml")
    del raw["train"]["label_smoothing"]
    write_params(folder / "params.yaml", raw)
    outs = [{"path": "metrics/eval.json", "md5": "0" * 32}]
    stages = {"train": {"cmd": "", "params": {"params.yaml": {"train": raw["train"]}}, "outs": outs}}
    stages["report"] = {"cmd": "", "params": {"params.yaml": {"train": {"lr": 77.0}}}, "outs": []}  # of an earlier run
    write_params(folder / "dvc.lock", {"schema": "2.0", "stages": stages})
    for one in (OURS, THEIRS):
        figures.write(folder / "metrics", one)
    commit(folder)
    head = revision_of("HEAD")
    assert (head.state, head.figures) == ("", figures.by_name(OURS) | figures.by_name(THEIRS))
    assert head.params["train.label_smoothing"] == read_params()["train"]["label_smoothing"]
    write_params(folder / "params.yaml", change(raw, train__lr=123.0))
    assert revision_of("workspace").state == revisions.OTHER_PARAMS


def test_figures_of_the_model_before_are_not_those_of_this_one(folder: Path) -> None:
    """After a training that ran alone, eval.json is of the model before: the revision has no test accuracy."""
    for one in (OURS, THEIRS):
        figures.write(folder / "metrics", one)
    weights = "models/model.safetensors"
    of_both = figures.by_name(OURS) | figures.by_name(THEIRS)
    for evaluated, values in (("1" * 32, of_both), ("2" * 32, figures.by_name(OURS))):
        train = [{"path": path, "md5": "1" * 32} for path in (weights, "metrics/train.json")]
        evaluate = {"deps": [{"path": weights, "md5": evaluated}], "outs": [{"path": "metrics/eval.json", "md5": "3"}]}
        stages = {"train": {"cmd": "", "outs": train}, "evaluate": {"cmd": "", **evaluate}}
        write_params(folder / "dvc.lock", {"schema": "2.0", "stages": stages})
        assert revision_of("workspace").figures == values
    for name, text in ("metrics/train.json", "{}"), ("dvc.lock", "stages:\n"), ("params.yaml", "train: [\n"):
        config = params.load().paths
        (folder / name).write_text(text)
        with refuses((f"{name} of workspace", "damaged")):
            revisions.read("workspace", {}, config)


def test_a_table_keeps_every_letter_of_a_name(tmp_path: Path) -> None:
    """Some begin a line for Python, such as the one that an ellipsis of Windows becomes in a wrong encoding."""
    names = ["a\x85.jpg", "b\u2028.jpg", "c\n.jpg", "d\x0c.jpg"]
    files.write_csv(tmp_path / "table.csv", ["path"], [[name] for name in names])
    assert [row["path"] for row in revisions._table(LocalFileSystem(), f"{tmp_path}/table.csv")] == names


def test_a_remote_that_closes_its_connection_is_an_error() -> None:
    """Also in a process that ends with the reader of its output: only its own output has that right."""
    handler = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with refuses(("HEAD", "unknown")):
            revisions._ask_dvc(lambda: os.write(writing, b"question"), "HEAD")
        assert signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGPIPE, handler)
        os.close(writing)


@pytest.mark.usefixtures("folder")
def test_a_revision_that_does_not_exist_is_refused_by_name(tmp_path: Path) -> None:
    """With what is allowed. A commit from before the first run has no figures."""
    for name in ("nowhere", "", "HEAD:params.yaml", "HEAD^{tree}", "x" * 5000):
        for question in (partial(revision_of, name), partial(revisions.bring, name, "params.yaml", tmp_path / "a")):
            with pytest.raises(UserError) as refused:
                question()
            assert [fault.kind for fault in refused.value.faults] == ["unknown"]
            assert str(refused.value).startswith(name[:100] or repr(""))
            assert len(str(refused.value)) < 400
    head = revision_of("HEAD")
    assert head.state == revisions.NO_RUN
    assert len(list(compare.notes([head]))) == 1
