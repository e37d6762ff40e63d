"""The stage card: README.md beside the model, which the Hugging Face Hub reads. Every fact on it can be computed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.base import files
from pipeline.dataset import split_table
from pipeline.models import description, hub
from pipeline.reporting import facts, model_card, rendering, settings
from pipeline.sources import torchvision_sets
from pipeline.stages import card, report
from pipeline.versioning import identity
from tests.conftest import set_params
from tests.helpers import reports
from tests.helpers.refusals import refuses
from tests.helpers.settings import tracked

EXPORTED = {"onnx": True, "images": 40, "near_ties": 0, "probabilities_differ_less_than": 0.0001}


@pytest.fixture(scope="module")
def folder(reported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the card reads."""
    folder = tmp_path_factory.mktemp("card") / "one"
    shutil.copytree(reported, folder)
    files.write_json(folder / "models" / hub.FILE, hub.config(description.load(folder / "models")))
    files.write_text(folder / "models/model.onnx", "the graph")
    files.write_json(folder / "metrics/export.json", EXPORTED)
    return folder


def write(folder: Path) -> str:
    """The card of a folder."""
    config = reports.config_in(folder)
    card.run(config)
    return (Path(config.paths.models) / card.FILE).read_text()


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return write(folder)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def row(text: str, name: str) -> list[str]:
    """The cells of the first row of a table of a card that begins with this cell, without it."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return line.removesuffix(" |").split(" | ")[1:]


def test_the_hub_reads_its_figures(folder: Path, page: str) -> None:
    """Task, library and figures are in the form of the Hub: with them it shows and finds the model."""
    hub_library = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub, which transformers brings")
    read = hub_library.ModelCard(page)
    assert (read.data.pipeline_tag, read.data.library_name) == ("image-classification", "timm")
    rows = files.read_csv(folder / "metrics/predictions.csv")
    right = sum(row["label"] == row["prediction"] for row in rows)
    figures = {result.metric_type: result.metric_value for result in read.data.eval_results}
    test = json.loads((folder / "metrics/eval.json").read_text())
    assert figures["accuracy"] == pytest.approx(right / len(rows), abs=1e-4)
    assert figures["f1"] == pytest.approx(test["macro_f1"], abs=1e-4)
    low, high = test["accuracy_low"], test["accuracy_high"]
    assert f"{right / len(rows):.4f} ({low:.4f} to {high:.4f})" in page


def test_the_numbers_and_hashes_are_those_of_the_files(folder: Path, page: str) -> None:
    """The table of the images counts every file; whoever has a copy of the folder can compare it."""
    rows = files.read_csv(folder / "data/split.csv")
    counts = [sum(one["split"] == part for one in rows) for part in ("train", "val", "test", "")]
    assert [int(cell) for cell in row(page, "**total**")] == counts
    assert "CC-BY by Zoë &lt;b&gt; (2" in page
    for name in card.FOLDER:
        assert row(page, f"`{name}`") == [f"`{files.sha256(folder / 'models' / name)}`"]
    assert files.md5(folder / "models/model.safetensors") in page  # as in dvc.lock
    config = reports.config_in(folder)
    assert all(f"`{one.name}`" in page for one in settings.settings(config, identity.settings(config, ["report"])))
    assert tracked("card") == tracked("report")  # so a setting on the card is never an old one


def test_no_name_is_a_mark_or_hides_others(page: str, copy: Path) -> None:
    """A name with HTML or Markdown is shown as it is, in one line; characters that hide or turn others as escapes."""
    for name in (*reports.CLASSES[1:], "Gänse blümchen", "می‌خواهم", "👩‍🌾", "été 2 (grün)"):
        assert rendering.markdown(name) == name
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert rendering.markdown("a|b\n`c` *d* [e]") == "a\\|b \\`c\\` \\*d\\* \\[e\\]"
    for letter in "\u202e\u2066\u200f\u061c\u200b\ufeff\u00ad\x1b\x07\x7f\x9b\ud800":
        assert rendering.markdown(f"a{letter}b") == f"a\\{ascii(letter)[1:-1]}b"
    for name in ("split.csv", "model.json", "predictions.csv", "LICENSE.txt"):
        (path,) = copy.rglob(name)
        path.write_text(path.read_text().replace("daisy", "|*dai\u202esy").replace("Zoë", "[Zoë\u202e]"))
    set_params(copy, split__group="(a|b)`\u202e")
    text = write(copy)
    assert row(text, "`split.group`") == [r"`` (a\|b)`\u202e ``", "`none`"]
    assert "\u202e" not in text
    assert len(row(text, r"\|\*dai\\u202esy")) == 4
    assert r"CC-BY by \[Zoë\\u202e\] &lt;b&gt;" in text


@pytest.mark.parametrize(
    ("model", "loaders"),
    [
        ("resnet18", {"timm", "transformers", "torchvision"}), ("regnet_x_400mf", {"timm", "torchvision"}),
        ("mobilenet_v3_small", {"torchvision"}), ("timm/resnet18", {"timm", "transformers"}),
    ],
)  # fmt: skip
def test_it_names_the_libraries_that_load_the_model(copy: Path, model: str, loaders: set[str]) -> None:
    """And no other. ONNX is named, unless it is switched off."""
    path = copy / "models/model.json"
    files.write_json(path, json.loads(path.read_text()) | {"model": model})
    text = write(copy)
    code = text.split("```python\n")[1].split("```")[0]
    assert {name for name in ("timm", "transformers", "torchvision") if f"= {name}." in code} == loaders
    assert "onnxruntime" in code


def test_what_was_not_done_is_not_said(copy: Path) -> None:
    """Without ONNX, the card has no figure of it. A damaged export.json is refused."""
    path = copy / "metrics/export.json"
    assert "differ by less than 0.0001" in write(copy)
    files.write_json(path, {"onnx": False})
    set_params(copy, evaluate__onnx=False, data__source="synthetic")
    text = write(copy)
    assert "onnx" not in text.split("| file |")[0]
    assert "CC0" in text
    assert "CC-BY" not in text
    files.write_text(path, "[1]")
    with refuses((path, "damaged")):
        write(copy)


def test_a_public_set_is_named(copy: Path) -> None:
    """The card and the report name it. The card has the page with its licence, and no photographers of other images."""
    set_params(copy, data__source="torchvision/Flowers102")
    text = write(copy)
    assert "`torchvision/Flowers102`" in text
    assert torchvision_sets.SETS["torchvision/Flowers102"].page in text
    assert "CC-BY" not in text
    report.run(reports.config_in(copy))
    assert " Flowers102, " in (copy / "reports/index.html").read_text()


def test_many_classes_and_credits_are_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has the first hundred classes, and the list of the makers the first ones; the rest is counted."""
    config = reports.config_in(folder)
    rows = split_table.all_rows(Path(config.paths.split))
    known = facts.read(config, identity.settings(config, ["report"]), rows)
    used = [row.path for row in rows if not row.reason]
    makers = {path: f"CC-BY by {number:03}" for number, path in enumerate(used)}
    classes = tuple(f"class {k}" for k in range(103))
    many = replace(known, outcome=replace(known.outcome, classes=classes), credits=makers)
    monkeypatch.setattr(model_card, "MOST_MAKERS", 2)
    text = model_card.card(many, rows, EXPORTED, {})
    assert text.count("\n3 more classes") == 1
    assert ("| class 99 |" in text, "| class 100 |" in text) == (True, False)
    assert row(text, "class 99")[1].startswith("0.000 ")
    assert f"{len(used)} of {len(used)} images" in text
    assert "CC-BY by 000 (1); CC-BY by 001 (1).\n" in text
    assert f"{len(used) - 2} more" in text
