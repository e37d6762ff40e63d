"""What `perennial repro` and `make demo` end with: the figures, where to look, and what to do next."""

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from pipeline.answers.summary import (
    Evaluation,
    changes_since,
    evaluation,
    no_better_than_constant,
    question,
    summary,
)
from pipeline.base import files
from pipeline.config import params
from pipeline.config.params import Paths
from pipeline.dataset import split_table
from pipeline.versioning import dvc_lock, integrity
from tests.conftest import PROJECT

RESULTS = PROJECT / "results/demo"


def paths_in(folder: str) -> Paths:
    """The paths of the demo, with its metrics in another folder."""
    return params.load(RESULTS / "params.yaml").paths.model_copy(update={"metrics": folder})


def test_the_figures_are_those_of_the_metrics(tmp_path: Path) -> None:
    """Images, test accuracy with its interval, and where everything is: the report last. Few test images are said."""
    paths = paths_in(str(RESULTS / "metrics"))
    text = summary(paths)
    for pattern in (r"images .*\b600 .*600.* 484 .* 63 .* 53 ", r"accuracy .*0\.9434 .*0\.8463 .* 0\.9806.* 53 "):
        assert re.search(pattern, text)
    for place in ("data/split.csv", "dvc plots show", "tensorboard --logdir runs", "perennial predict IMAGE"):
        assert place in text
    assert "reports/index.html" in text.splitlines()[-1]
    assert "reports/index.html" not in summary(paths, has_report=False)  # that page is of an earlier run
    assert summary(paths_in("nowhere")) == ""
    assert "perennial folds" not in text
    shutil.copyfile(RESULTS / "metrics/eval.json", tmp_path / "eval.json")
    (tmp_path / "images.csv").write_text("class,train,val,test,excluded\na,9,1,28,0\nb,9,1,1,0\n")
    [line] = [line for line in summary(paths_in(str(tmp_path))).splitlines() if "perennial folds" in line]
    assert "29 in all; 1 of b" in line


def put_object(cache: Path, text: str) -> str:
    """Put a table into DVC's cache; its MD5."""
    md5 = hashlib.md5(text.encode()).hexdigest()
    files.write_text(integrity.object_of(cache, md5), text)
    return md5


def put_split(cache: Path, *images: tuple[str, str, str]) -> str:
    """Put a split.csv into DVC's cache, with the path, the pixels and the reason of each image; its MD5."""
    rows = [f"{path},{path[0]},{'' if reason else 'test'},{reason},9,9,{pixels},0," for path, pixels, reason in images]
    return put_object(cache, "\n".join([",".join(split_table.HEADER), *rows]) + "\n")


@pytest.mark.parametrize(("accuracy", "is_said"), [(0.5, True), (0.6, True), (0.61, False)])
def test_a_model_that_is_no_better_than_one_answer_is_named(accuracy: float, is_said: bool) -> None:
    """With the share of the largest class: a newcomer could take a chance result for a success."""
    assert ("0.6000" in no_better_than_constant(accuracy, [2, 6, 2])) == is_said


def test_after_photos_were_added_the_earlier_accuracy_is_said(tmp_path: Path) -> None:
    """With its number of test images, and what became of the images that are used, by class, and how many are in
    another part. Of the same images in another split, and without the earlier tables, nothing is said.
    """
    old = put_split(tmp_path, ("a/1", "x", ""), ("a/2", "y", ""), ("b/1", "z", ""), ("b/2", "w", "empty"))
    new = put_split(tmp_path, ("a/1", "v", ""), ("b/1", "z", ""), ("b/2", "w", ""), ("b/3", "u", ""), ("c/1", "t", ""))
    answers = put_object(tmp_path, "path,label,prediction\n1,a,a\n2,a,b\n3,b,b\n4,b,b\n")
    before, after = Evaluation(old, answers), Evaluation(new, "0" * 32)
    [(_, accuracy), (_, changes)] = changes_since(before, after, tmp_path)
    assert re.match(r"0\.7500 \(95 % interval: 0\.30\d\d to 0\.95\d\d, 4 images\)$", accuracy)
    assert changes == "3 added (b 2, c 1), 1 removed (a 1), 1 changed (a 1)"
    other = put_object(tmp_path, integrity.object_of(tmp_path, old).read_text().replace("test", "train"))
    for same in (before, Evaluation(other, "0" * 32), Evaluation("1" * 32, "0" * 32), None):
        assert changes_since(before, same, tmp_path) == changes_since(same, before, tmp_path) == []
    moved = put_object(tmp_path, integrity.object_of(tmp_path, new).read_text().replace("b/1,b,test", "b/1,b,train"))
    *_, (_, note) = changes_since(before, Evaluation(moved, "0" * 32), tmp_path)
    assert note.startswith("in another part than earlier: 1 of the images")


def test_a_stage_of_ones_own_may_have_no_deps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC allows it. What another stage reads inside its output makes it an earlier stage."""
    monkeypatch.chdir(tmp_path)
    stages = "mine: {cmd: x, outs: [a]}\n  other: {cmd: y, deps: [a/b], outs: [c: {cache: false}]}"
    Path("dvc.yaml").write_text(f"stages:\n  {stages}\n")
    assert dvc_lock.graph() == {"mine": set(), "other": {"mine"}}


def test_another_result_than_the_committed_one_has_a_question() -> None:
    """The command that answers it is named; with the same predictions, and before the first commit, it is not."""
    paths = params.Params().paths
    entry = {"deps": {paths.split: "1"}, "outs": {f"{paths.metrics}/predictions.csv": "2"}}
    committed = evaluation({"evaluate": entry}, paths)
    assert committed == Evaluation("1", "2")
    [(_, command)] = question(committed, Evaluation("1", "3"))
    assert command == "perennial compare HEAD workspace"
    assert command in summary(paths_in(str(RESULTS / "metrics")), earlier=question(committed, Evaluation("9", "3")))
    assert question(committed, Evaluation("9", "2")) == question(None, committed) == question(committed, None) == []
    assert evaluation({}, paths) is None
