"""More epochs after the end of a training: from a commit, an experiment or this folder, under real DVC."""

import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from ruamel.yaml import YAML

from pipeline.base import files
from pipeline.commands.continue_from import write
from pipeline.dataset.normalization import IMAGENET
from pipeline.models import pretrained
from pipeline.models.description import Description, View
from tests.conftest import set_params
from tests.helpers.damage import flip
from tests.helpers.projects import call, commit, create_project
from tests.helpers.refusals import refuses

UNDER_DVC = pytest.mark.nightly("several runs of DVC; make test has the parts: the file, and loading it")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of two epochs on drawn flowers, committed; the experiment `saved` has the same model."""
    folder = create_project(
        tmp_path_factory.mktemp("continued"),
        data__source="synthetic", data__synthetic__count=60, data__synthetic__size=40, train__epochs=2,
    )  # fmt: skip
    call(folder, "dvc", "repro")
    commit(folder)
    call(folder, "dvc", "exp", "save", "--quiet", "--name", "saved")
    return folder


def continue_from(folder: Path, revision: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return call(folder, sys.executable, "-m", "pipeline", "continue-from", revision, check=check)


def test_the_file_follows_from_the_model_alone(tmp_path: Path) -> None:
    """Its name has the digest of the model. Written twice, it has the same bytes, with the names of the classes."""
    weights = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    description = Description("timm/small", ("a", "b"), View(40, 36, 32), IMAGENET.mean, IMAGENET.std, "last", 3)
    paths = [write(tmp_path / folder, description, weights, "0123456789abcdef") for folder in ("one", "other")]
    assert {path.name for path in paths} == {"timm-small-0123456789ab.safetensors"}
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert pretrained.classes_of(paths[0]) == ("a", "b")
    read = safetensors.torch.load_file(paths[0])
    assert all(read[name].equal(weights[name]) for name in weights)


def test_a_network_of_whole_numbers_is_refused(tmp_path: Path) -> None:
    """That of `quick`: its weights are no weights that a training starts with, and `weights` would refuse the file."""
    about = Description("exact/some", ("a", "b"), View(40, 36, 32), IMAGENET.mean, IMAGENET.std, "last", 1)
    with refuses(("REVISION", "value")):
        write(tmp_path, about, {}, "0123456789abcdef")
    assert not list(tmp_path.iterdir())


def history(folder: Path) -> list[dict[str, str]]:
    return files.read_csv(folder / "metrics/history.csv")


@UNDER_DVC
def test_a_training_continues_from_a_commit(folder: Path) -> None:
    """It begins with the whole model, head included; repeated, it has the same lock. The file is versioned."""
    call(folder, "git", "checkout", "--quiet", "params.yaml")
    last = history(folder)[-1]
    digest = files.sha256(folder / "models/model.safetensors")
    model = safetensors.torch.load_file(folder / "models/model.safetensors")
    params = (folder / "params.yaml").read_text().splitlines()
    continue_from(folder, "HEAD")
    name = f"data/pretrained/shufflenet_v2_x0_5-{digest[:12]}.safetensors"
    (line,) = [line for line in (folder / "params.yaml").read_text().splitlines() if line not in params]
    assert line.startswith(f"  weights: {name}")
    tensors = safetensors.torch.load_file(folder / name)
    assert tensors.keys() == model.keys()
    assert all(tensors[key].equal(model[key]) for key in model)
    assert YAML(typ="safe").load(folder / f"{name}.dvc")["outs"][0]["md5"] == files.md5(folder / name)
    status = call(folder, "git", "status", "--porcelain", "--untracked-files=all").stdout
    assert sorted(line[3:] for line in status.splitlines()) == [f"{name}.dvc", "params.yaml"]

    set_params(folder, train__lr=1e-9, train__freeze_backbone=True)
    again = call(folder, "dvc", "repro", "train")
    assert f"{len(model)} tensors" in again.stderr
    assert [row["epoch"] for row in history(folder)] == ["1", "2"]
    for row in history(folder):
        assert row["val_accuracy"] == last["val_accuracy"]
        assert float(row["val_loss"]) == pytest.approx(float(last["val_loss"]), rel=1e-5)
    lock = (folder / "dvc.lock").read_bytes()
    file = (folder / name).read_bytes()
    short = call(folder, "git", "rev-parse", "--short", "HEAD").stdout.strip()
    for revision in ("HEAD", short, "saved"):  # other names of the same model
        continue_from(folder, revision)
    assert [path.read_bytes() for path in (folder / "data/pretrained").glob("*.safetensors")] == [file]
    assert "up to date" in call(folder, "dvc", "status", "train").stdout
    call(folder, "dvc", "repro", "--force", "train")
    assert (folder / "dvc.lock").read_bytes() == lock


@UNDER_DVC
def test_what_cannot_be_continued_is_refused_and_nothing_is_changed(folder: Path) -> None:
    """An unknown revision, one without a model, and a damaged one."""
    before = (folder / "params.yaml").read_text()
    names = sorted(path.name for path in (folder / "data/pretrained").iterdir())

    def refusal(revision: str) -> str:
        done = continue_from(folder, revision, check=False)
        assert done.returncode == 1
        return done.stderr.removeprefix("continue-from: ")

    assert refusal("HEAD~1").startswith("HEAD~1: ")
    lock = YAML(typ="safe").load(call(folder, "git", "show", "HEAD:dvc.lock").stdout)
    (md5,) = (out["md5"] for out in lock["stages"]["train"]["outs"] if out["path"] == "models/model.safetensors")
    path = folder / f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"
    flip(path)
    of_cache = refusal("HEAD")
    flip(path)
    assert of_cache.startswith("HEAD:models/model.safetensors: ")
    model = folder / "models/model.safetensors"
    whole = model.read_bytes()
    files.remove(model)  # it may share its bytes with DVC's cache
    tensors = safetensors.torch.load(whole)
    safetensors.torch.save_file({**tensors, "fc.bias": tensors["fc.bias"] / 0 * 0}, model)
    of_folder = refusal("workspace")
    files.remove(model)
    model.write_bytes(whole)
    assert of_folder.startswith("workspace:models/model.safetensors: ")
    assert sorted(path.name for path in (folder / "data/pretrained").iterdir()) == names
    assert (folder / "params.yaml").read_text() == before
