"""`perennial start`: it shows the presets, writes one into params.yaml, and says how long a run takes."""

import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.checks.machine import Machine
from pipeline.commands import start
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data.splitting import Cut
from pipeline.planning import estimate, presets
from pipeline.planning.estimate import Part
from pipeline.planning.survey import Survey
from tests.conftest import PROJECT, change
from tests.helpers import in_process
from tests.helpers.datasets import put, two_classes
from tests.helpers.projects import create_project
from tests.helpers.refusals import refuses

HERE = Machine(0, "missing", compiler=False, cores=2)
TWO_CLASSES = Survey("here", 2, {"": 100})


@pytest.fixture
def project_with_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the committed params.yaml and 40 images in the inbox, as the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("params.yaml", "data/corrections.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((PROJECT / name).read_bytes())
    for number in range(40):
        put(tmp_path / "data/inbox" / ("cat", "dog")[number % 2] / f"{number}.png", number)
    return tmp_path


def test_a_preset_changes_its_lines_and_no_other(project_with_photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each changed line is shown as old → new. Its comment stays, and so does every other line."""
    path, texts = project_with_photos / "params.yaml", dict[str, str]()
    before = path.read_text().splitlines()
    for name in ("quick", "good", "good", "quick"):
        config = params.load()
        start.write(config, start.values(name, replace(start.situation(config), machine=HERE)), verbose=len(texts) == 0)
        assert texts.setdefault(name, path.read_text()) == path.read_text()
        if len(texts) == 1:
            stdout = capsys.readouterr().out
    assert {("data.source", "archive", "→", "inbox"), ("train.head", "trained", "→", "solved")} <= {
        tuple(line.split()) for line in stdout.splitlines()
    }
    differ = [(old, new) for old, new in zip(before, texts["quick"].splitlines(), strict=True) if old != new]
    assert len(differ) == stdout.count("→")
    assert all(old.partition("#")[2] == new.partition("#")[2] for old, new in differ)


def test_a_small_class_gets_its_share_of_each_part(raw: dict[str, Any]) -> None:
    """A preset stratifies the split then; not if all classes are large, not counted, or have a given split."""
    config, small = params.parse(raw), {"tulips": 45, "roses": 500}
    for photos, expected in (
        (Survey("here", 2, {"": 545}, sizes=small), True),
        (Survey("here", 2, {"": 1000}, sizes=small | {"tulips": 500}), False),
        (Survey("here", 2, {"train": 500, "val": 22, "test": 23}, Cut("train", ()), sizes=small), False),
        (TWO_CLASSES, False),
    ):
        assert ("split.stratify" in start.values("quick", start.Situation(config, HERE, {}, photos))) == expected


def test_a_setting_that_does_not_go_with_a_preset_is_named(raw: dict[str, Any]) -> None:
    """The user's own other settings stay, and one that contradicts is refused before anything is written."""
    config = params.parse(change(raw, split__fold=5))
    with refuses(("split.fold", "value"), (params.FILE, "pair")):
        start.with_preset("quick", start.Situation(config, HERE, {}, TWO_CLASSES), presets.changes("quick", HERE, 100))


def test_an_empty_inbox_leaves_the_source(raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without class folders in the inbox, the archive stays the source; a chosen source always stays."""
    monkeypatch.chdir(tmp_path)
    assert start.source(params.parse(raw), "") == {}
    (tmp_path / "data/inbox/cats").mkdir(parents=True)
    assert start.source(params.parse(raw), "") == {"data.source": "inbox"}
    assert start.source(params.parse(change(raw, data__source="synthetic")), "") == {}


def test_a_folder_of_photos_is_read_where_it_is(
    project_with_photos: Path, raw: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`--photos` names any folder of this machine; one inside the project by its path there. Another one is refused."""
    outside = two_classes(tmp_path_factory.mktemp("My photos"))
    config = params.parse(raw)
    now = start.situation(config, str(outside))
    assert now.source == {"data.source": "folder", "paths.inbox": str(outside)}
    assert now.survey.images == 20
    start.write(config, start.values("quick", now))
    assert params.load().paths.inbox == str(outside)
    assert start.source(config, "data/inbox") == {"data.source": "folder", "paths.inbox": "data/inbox"}
    for nowhere in ("nowhere", "~nobody here/photos"):
        with refuses(("--photos", "missing")):
            start.source(config, nowhere)
    Path("my photos").mkdir()
    with refuses(("paths.inbox", "value")):
        start.situation(config, "my photos")


def test_what_is_odd_about_the_folders_is_said(project_with_photos: Path) -> None:
    """Classes that differ only in case, and a small class: one note each."""
    for number in range(3):
        put(Path(f"data/inbox/Cat/{number}.png"), 100 + number)
    notes = [line for line in start.lines(start.situation(params.load())) if line.startswith("note ")]
    assert len(notes) == 2
    now = start.situation(params.load())
    said = {
        name: start.too_few(params.with_values(now.config, start.values(name, now)), now.survey)
        for name in ("quick", "good", "scratch")
    }
    assert [name for name, note in said.items() if note] == ["scratch"]


def test_classes_with_too_few_images_are_refused(project_with_photos: Path) -> None:
    """All of them are named, and nothing is written: the stage split would refuse them. A correction counts."""
    before = params.FILE.read_bytes()
    for label in ("emu", "fox"):
        put(Path(f"data/inbox/{label}/1.png"), 100)
    with refuses(("classes", "missing"), ("classes", "missing")) as error:
        start.start("quick", "")
    assert all(name in fault.value for name, fault in zip(("'emu'", "'fox'"), error.value.faults, strict=True))
    assert params.FILE.read_bytes() == before
    lines = ("path,label", "cat/0.png,emu", "cat/2.png,emu", "cat/4.png,fox", "cat/6.png,fox")
    Path("data/corrections.csv").write_text("\n".join(lines))
    assert start.situation(params.load()).survey.sizes == {"cat": 16, "dog": 20, "emu": 3, "fox": 3}


def test_without_photos_there_are_times(
    project_with_photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a fresh clone the times are those of flower_photos' number of images."""
    shutil.rmtree("data/inbox")
    before, requests = params.FILE.read_bytes(), []

    def measure_parts(config: Params, survey: Survey) -> list[Part]:
        requests.append((survey.images, survey.classes))
        return [Part("train", 12_600, "")]

    monkeypatch.setattr(estimate, "measure_parts", measure_parts)
    monkeypatch.setattr(start, "this_machine", lambda: HERE)
    assert start.start("", "") == 0
    lines = capsys.readouterr().out.splitlines()
    assert requests == 5 * [(3670, 5)]
    assert sum("about 3.5 hours" in line for line in lines) == 5
    table = [line for line in lines if line.partition(" ")[0] in presets.NAMES]
    assert len(table) == len(presets.NAMES)
    assert max(map(len, table)) <= 80
    assert params.FILE.read_bytes() == before


def test_a_preset_that_cannot_run_here_is_refused(
    project_with_photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a preset the last line says what to type, and nothing is changed."""
    before = params.FILE.read_bytes()
    monkeypatch.setattr(start, "this_machine", lambda: HERE)
    monkeypatch.setattr(start, "offer", lambda *_: None)
    with refuses(("preset", "machine")):
        start.start("apex", "")
    with refuses(("preset", "value")) as refused:
        start.main(Namespace(preset="qick", photos=None))
    assert "quick?" in refused.value.faults[0].remedy
    assert start.start("", "data/inbox") == 0
    assert capsys.readouterr().out.endswith(f"perennial start {presets.RECOMMENDED} --photos data/inbox\n")
    assert params.FILE.read_bytes() == before
    monkeypatch.setattr(estimate, "report_lines", lambda config, found: iter(["…", "a run takes long", "its parts"]))
    assert main(["start", "Quick"]) == 0
    stdout = capsys.readouterr().out
    assert "\na run takes long\n" in stdout
    assert not {"its parts", "→"} & {*stdout.split("\n"), *stdout}  # for --verbose
    assert params.FILE.read_bytes() != before


@pytest.mark.slow("features of a pretrained network, under DVC; make test has the settings that a preset writes")
def test_from_photos_to_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`quick` names the photos, and a training of what it wrote has a model."""
    folder, photos = create_project(tmp_path / "project", train__epochs=7), tmp_path / "My photos"
    for number in range(24):
        put(photos / ("cat", "dog")[number % 2] / f"{number}.png", number, side=64)
    monkeypatch.chdir(folder)
    start.write(params.load(), start.values("quick", start.situation(params.load(), str(photos))))
    assert (params.load().data.source, params.load().train.crop) == ("folder", 224)
    in_process.run_forked(folder, "train")
    assert Path("models/model.safetensors").is_file()
