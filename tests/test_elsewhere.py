"""`verify elsewhere` says: the same bytes, no significant difference of the accuracies, or a lower one."""

import json
import shutil
import signal
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from pipeline.attest import seeds
from pipeline.base import files
from pipeline.base.errors import Kind
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.studies import store
from pipeline.studies.pooling import Spread, spread
from pipeline.versioning.dvc_lock import StageHashes
from tests.conftest import on_cpu, read_params
from tests.helpers.datasets import noise_image
from tests.helpers.projects import call, commit, create_project, edited, link_code, verify, verify_environment
from tests.helpers.refusals import refuses
from tests.helpers.trainings import wait_for

SETTINGS: dict[str, Any] = {
    "data__source": "inbox", "split__phash_distance": 0, "split__folds": 1,
    "split__fractions": {"train": 0.6, "val": 0.1, "test": 0.3}, "train__model": "resnet18",
    "train__optimizer": "adamw", "train__lr": 0.001, "train__epochs": 3, "train__crop_scale": [0.4, 1.0],
    "train__label_smoothing": 0.0,
}  # fmt: skip
RATE = ("pipeline/learning/schedule.py", "reference else lr\n")  # the code that gives the learning rate


def tinted_photos(inbox: Path) -> None:
    """Three classes of 40 images of noise, one more red, one more green, one more blue: easy to learn."""
    for channel, name in enumerate(("red", "green", "blue")):
        (inbox / name).mkdir(parents=True)
        for number in range(40):
            pixels = np.asarray(noise_image(100 * channel + number, 40).convert("RGB"), np.int64).copy()
            pixels[..., channel] += 60
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(inbox / name / f"{number}.png")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project, run, with the accuracies of two seeds, and committed; the tests copy it."""
    top = tmp_path_factory.mktemp("elsewhere")
    (top / "temporary").mkdir()
    folder = create_project(top / "project", **SETTINGS)
    tinted_photos(folder / "data/inbox")
    call(folder, "dvc", "repro")
    commit(folder)
    done = verify(folder, "record-seeds", "2")
    assert done.returncode == 0, done.stderr
    commit(folder)
    return folder


@pytest.fixture
def project(original: Path, tmp_path: Path) -> Path:
    """The recorded project on a machine that has trained no seed yet; it has the inputs, and no model."""
    (tmp_path / "temporary").mkdir()
    folder = shutil.copytree(original, tmp_path / "project", symlinks=True)
    for trained in (".dvc/tmp/reruns", "models", "runs", "reports"):
        files.remove(folder / trained)
    return folder


@pytest.mark.nightly("trains several seeds under DVC; make test has the file of the seeds, the t-test, and verify")
def test_the_first_result_is_the_same_bytes(project: Path) -> None:
    """A machine that gives the recorded bytes is found by its first seed. The cache stays as it is."""
    before = {path for path in (project / ".dvc/cache").rglob("*") if path.is_file()}
    done = verify(project, "elsewhere")
    assert done.returncode == 0, done.stderr
    assert "seeds: 0;" in done.stdout
    assert "seed 1: " not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("verify: the same bytes: seed 0 ")
    assert {path for path in (project / ".dvc/cache").rglob("*") if path.is_file()} == before
    assert call(project, "git", "status", "--porcelain").stdout == ""


SEVERAL_SEEDS = pytest.mark.nightly("trainings with several seeds; make test has the test of their accuracies")


def commit_changed_code(project: Path, old: str, new: str) -> None:
    """Commit other code, with a dvc.lock that says that it gave the recorded outputs."""
    call(project, "dvc", "checkout")
    edited(RATE[0], old, new)(project)
    call(project, "dvc", "commit", "--force", "features", "train", "evaluate", "export", "report")
    commit(project)


@SEVERAL_SEEDS
@pytest.mark.parametrize(
    ("factor", "options", "status", "result"),
    [("1.000001", ("--seeds", "2"), 0, "no significant difference"), ("0", (), 3, "significantly lower")],
)
def test_other_bytes_are_no_significant_difference_or_a_lower_accuracy(
    project: Path, factor: str, options: tuple[str, ...], status: int, result: str
) -> None:
    """Other rounding of a learning rate, as of another machine; and code that learns nothing."""
    commit_changed_code(project, RATE[1], f"reference else lr * {factor}\n")
    done = verify(project, "elsewhere", *options)
    assert done.returncode == status, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"verify: {result}")
    rows = json.loads((project / "metrics/seeds.json").read_bytes())["seeds"]
    assert f"{statistics.mean(row['accuracy'] for row in rows):.4f} ± " in last
    differing = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("  differs")]
    assert "models/model.safetensors" in differing


def result_of(project: Path, seed: int) -> list[Path]:
    """The file with the hashes of the training with this seed; none before its end."""
    found = (project / store.RESULTS).glob(f"*/{store.HASHES}")
    return [path for path in found if params.load(path.with_name(params.FILE.name)).train.seed == seed]


@pytest.mark.nightly("trainings with several seeds, killed; make test has the file that they write")
def test_recording_again_gives_the_same_bytes_and_trains_no_finished_seed(project: Path) -> None:
    """Killed after a seed, while two train, it goes on with the others. The file has the same bytes as before."""
    before = (project / "metrics/seeds.json").read_bytes()
    command = [sys.executable, "-m", "pipeline", "verify", "record-seeds", "4", "--jobs", "2"]
    with subprocess.Popen(command, cwd=project, env=verify_environment(project)) as process:
        wait_for(lambda: result_of(project, 1) or process.poll() is not None, "no seed")
        process.kill()
    assert process.returncode == -signal.SIGKILL
    (result,) = result_of(project, 1)
    mtime = result.stat().st_mtime_ns
    done = verify(project, "record-seeds", "2")
    assert done.returncode == 0, done.stderr
    assert "verify: training" not in done.stdout
    assert result.stat().st_mtime_ns == mtime
    assert (project / "metrics/seeds.json").read_bytes() == before


@pytest.mark.nightly("trains several seeds under DVC; make test-ci compares a first result")
def test_what_cannot_be_compared_is_refused(project: Path) -> None:
    """Too few seeds, no figures, figures that are not committed, and a stage that fails: each by its key."""

    def refusal(*options: str) -> str:
        done = verify(project, *options)
        assert done.returncode == 1
        return done.stderr.removeprefix("verify: ")

    assert refusal("elsewhere", "--seeds", "1").startswith("--seeds: 1; ")
    assert refusal("record-seeds", "1").startswith("record-seeds: 1; ")
    figures = project / "metrics/seeds.json"
    figures.write_text(figures.read_text().replace("0.", "0.0", 1))
    assert "metrics/seeds.json: " in refusal("elsewhere")
    call(project, "git", "rm", "--quiet", "--force", "metrics/seeds.json")
    commit(project)
    assert refusal("elsewhere").startswith("metrics/seeds.json: ")
    files.remove(project / "data/packed")
    packed = refusal("record-seeds", "2")
    assert packed.startswith("data/packed: ")
    assert "models" not in packed
    commit_changed_code(project, RATE[1], "reference else exit(4)\n")
    assert refusal("record-seeds", "2").startswith("seed 1: ")


# ---- the file


STAGE_HASHES: StageHashes = {
    "prepare": {"deps": {}, "outs": {"data/packed": "1.dir"}},
    "train": {
        "deps": {"data/packed": "1.dir", "pipeline/stages/train.py": "2"},
        "outs": {"models/model.safetensors": "3"},
    },
    "evaluate": {"deps": {"data/packed": "1.dir", "models/model.safetensors": "3"}, "outs": {"metrics/eval.json": "4"}},
}


def config(**changes: Any) -> Params:
    return params.parse(on_cpu(read_params(), **changes))


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the accuracies of two seeds."""
    monkeypatch.chdir(tmp_path)
    link_code(tmp_path)
    seeds.write(seeds.path(config()), config(), STAGE_HASHES, {0: 0.5, 1: 0.6})
    return seeds.path(config())


def test_the_figures_belong_to_params_and_data_but_not_to_a_seed(figures: Path) -> None:
    """Another seed of the same recipe is compared with the same figures. A setting that is newer has its default."""
    table = seeds.read(config(), STAGE_HASHES, 0.5)
    assert [(seed.seed, seed.accuracy) for seed in table.seeds] == [(0, 0.5), (1, 0.6)]
    assert table.inputs == {"data/packed": "1.dir"}
    assert seeds.read(config(train__seed=7), STAGE_HASHES, 0.1) == table
    content = json.loads(figures.read_bytes())
    del content["params"]["train.patience"]
    files.write_json(figures, content)
    assert seeds.read(config(), STAGE_HASHES, 0.5).seeds == table.seeds


@pytest.mark.parametrize(
    ("changes", "stage_hashes", "accuracy", "keys"),
    [
        ({"train__lr": 0.5, "train__epochs": 7}, STAGE_HASHES, 0.5, [": train.epochs", ": train.lr"]),
        ({}, {**STAGE_HASHES, "prepare": {"deps": {}, "outs": {"data/packed": "9.dir"}}}, 0.5, [": data/packed"]),
        ({"run__processes": 2, "train__parallel": "ddp"}, STAGE_HASHES, 0.5, [": run.processes", ": train.parallel"]),
        ({}, STAGE_HASHES, 0.4, [""]),
    ],
    ids=["params", "data", "processes", "code"],
)
def test_figures_of_another_recipe_are_refused_by_name(
    figures: Path, changes: dict[str, Any], stage_hashes: StageHashes, accuracy: float, keys: list[str]
) -> None:
    """Each setting or input that differs is a fault."""
    faults: list[tuple[object, Kind]] = [(f"{figures}{key}", "differs") for key in keys]
    with refuses(*faults):
        seeds.read(config(**changes), stage_hashes, accuracy)
    seeds.write(figures, config(), STAGE_HASHES, {0: 0.5})
    with refuses((figures, "value")):  # one accuracy has no spread
        seeds.read(config(), STAGE_HASHES, 0.5)


# ---- the test


def test_the_p_value_is_that_of_the_one_sided_t_test() -> None:
    """Compared with scipy's test of the values themselves. Values without any spread are equal, higher or lower."""
    here, there = [0.91, 0.90, 0.93], [0.94, 0.95, 0.91, 0.93]
    p = stats.ttest_ind(here, there, alternative="less").pvalue
    assert seeds.p_value(spread(here), spread(there)) == pytest.approx(p)
    flat = Spread(2, 0.9, 0.0)
    assert [seeds.p_value(replace(flat, mean=mean), flat) for mean in (0.8, 0.9, 1.0)] == [0, 1, 1]
    low, high = Spread(3, 0.5, 0.01), Spread(3, 0.9, 0.01)
    assert (seeds.t_test(low, high)[0], seeds.t_test(high, low)[0]) == (True, False)
    assert seeds.detectable_drop(flat, flat) == 0


@pytest.mark.parametrize(("count", "other"), [(2, 2), (3, 10)])
def test_a_visible_drop_is_found_in_four_of_five_cases(count: int, other: int) -> None:
    """20,000 drawn comparisons with this drop of the mean; with none, one in twenty is called significantly lower."""
    deviation, random = 0.01, np.random.default_rng(0)
    drop = seeds.detectable_drop(Spread(count, 0.9, deviation), Spread(other, 0.9, deviation))
    original = random.normal(0.9, deviation, (20_000, other))
    for lower, share in ((drop, 0.8), (0.0, 0.05)):
        here = random.normal(0.9 - lower, deviation, (20_000, count))
        p = stats.ttest_ind(here, original, axis=1, alternative="less").pvalue
        assert (p < seeds.LEVEL).mean() == pytest.approx(share, abs=0.01)
        assert seeds.p_value(spread(here[0]), spread(original[0])) == pytest.approx(p[0])
