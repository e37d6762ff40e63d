"""Prediction from the command line, with a small untrained model."""

import csv
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipeline.answers import classify, gallery_page
from pipeline.answers.answer import Answer
from pipeline.base import files
from pipeline.base.errors import Kind
from pipeline.base.text import visible
from pipeline.checks import machine
from pipeline.command_line import parse
from pipeline.commands import predict
from pipeline.config.params import Params, Split
from pipeline.evaluation import onnx_file
from pipeline.models import description
from pipeline.sources import fetch
from tests.helpers import starts
from tests.helpers.damage import edited, flip
from tests.helpers.datasets import png_with_size
from tests.helpers.evaluations import CLASSES
from tests.helpers.pages import parsed
from tests.helpers.refusals import refuses
from tests.helpers.sources import NO_WAITS, reply, server


@pytest.fixture(scope="module")
def exporting(with_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of that folder, in which tests write."""
    return shutil.copytree(with_onnx, tmp_path_factory.mktemp("predict") / "project", symlinks=True)


@pytest.fixture
def folder(exporting: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the working folder."""
    monkeypatch.chdir(exporting)
    return exporting


ONNX = Path("models/model.onnx")


def ask(*images: Path, form: str = "text", top: int | None = None, **options: Any) -> int:
    """Predict in this process: the number of files that are no images."""
    return predict.predict(classify.Request(images, **options), form, top)


def command(*arguments: object) -> list[str]:
    """`perennial predict …`, from model.onnx of the working folder unless another model is given."""
    model = () if "--model" in arguments else ("--model", ONNX)
    return [sys.executable, "-m", "pipeline", "predict", *map(str, (*model, *arguments))]


@pytest.mark.parametrize(("model", "kind"), [(None, "machine"), (ONNX, "pair")], ids=["a folder", "model.onnx"])
def test_a_device_that_cannot_compute_is_refused(folder: Path, model: Path | None, kind: Kind) -> None:
    """--device cuda without a GPU, and for model.onnx, which is for the CPU."""
    if model is None and machine.read().cuda_devices > 0:
        pytest.skip("this machine has a GPU")
    with refuses(("--device", kind)):
        ask(Path("x.png"), model=model, device="cuda")


def draw(path: Path, size: tuple[int, int] = (50, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "red").save(path, format="PNG")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and what may lie beside them."""
    top = tmp_path_factory.mktemp("tree")
    for name in ("two/b.png", "two/A.PNG", "two/__MACOSX/b.png", "two/.hidden.png", "one.png", "phone/photo", "cut/a"):
        draw(top / name)
    draw(top / "sizes/small.png")
    draw(top / "sizes/large.png", (60, 50))
    for name, size in (("pixel", (1, 1)), ("wide", (600, 2)), ("tall", (31, 40)), ("least", (32, 32))):
        draw(top / f"small/{name}.png", size)
    for name in ("empty", "videos", "odd"):
        (top / name).mkdir()
    for name in ("phone", "videos"):
        (top / name / "photo.MOV").write_bytes(b"\0\0\0\x14ftypqt  \0\0\0\0qt  ")
        (top / name / "photo.AAE").write_bytes(b"bplist00")
    (top / "two/notes.txt").write_text("no image")
    (top / "cut/page.jpg").write_text("<html>")
    (top / "cut/b").write_bytes((top / "one.png").read_bytes()[:-30])
    os.mkfifo(top / "odd/pipe.jpg")  # nobody writes into it
    (top / "odd/folder").symlink_to(top)
    (top / "odd/large.png").write_bytes(png_with_size(30_000, 30_000))
    return top


LONG = "a" * 300


@pytest.mark.parametrize(
    ("given", "answered", "named", "refused"),
    [
        (("two", "no.png", "empty", "one.png"), ("two/A.PNG", "two/b.png", "one.png"),
         ("two", "no.png", "empty", "3 images"), 2),
        (("phone",), ("phone/photo",), ("phone", "1 image"), 0),
        (("videos", "videos/photo.MOV"), (), ("videos", "videos/photo.MOV", "allowed"), 2),
        (("cut",), ("cut/a",), ("cut/b", "cut/page.jpg", "allowed", "1 image"), 2),
        (("sizes",), ("sizes/small.png",), ("sizes/large.png", "1 image"), 1),
        (("small",), ("small/least.png",), ("small/pixel.png", "small/tall.png", "small/wide.png", "1 image"), 3),
        (("odd", "odd/pipe.jpg", LONG), (), ("odd/folder", "odd/large.png", "odd/pipe.jpg", "odd/pipe.jpg", LONG), 5),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_is_given_is_answered_counted_or_named(
    exporting: Path, tree: Path, given: tuple[str, ...], answered: tuple[str, ...], named: tuple[str, ...],
    refused: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """In the given order. Junk is left out; what else lies in a folder with images is counted."""
    monkeypatch.chdir(tree)
    model = exporting / "models/model.onnx"
    assert ask(*map(Path, given), model=model, max_pixels=2000) == refused
    said = capsys.readouterr()
    assert [line.rpartition(": ")[0] for line in said.out.splitlines()] == [*answered]
    assert [line.split(": ")[1] for line in said.err.splitlines()] == [*named]


def test_the_limits_of_size_are_those_of_the_project(folder: Path, tmp_path: Path) -> None:
    """split.max_pixels and split.min_side, unless the request has others; either file refuses what they exclude."""
    config = Params(split=Split(max_pixels=999, min_side=7))
    assert classify.size_limits(classify.Request(()), config) == (999, 7)
    assert classify.size_limits(classify.Request((), max_pixels=5, min_side=3), config) == (5, 3)
    draw(tmp_path / "a.png", (3000, 2))
    draw(tmp_path / "b.png", (31, 32))
    for model in (ONNX, None):
        assert [ask(tmp_path, model=model, min_side=side) for side in (None, 31, 1)] == [2, 1, 0]


def test_each_answer_is_printed_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long list of images is answered as it goes."""
    real, noted = onnx_file.OnnxModel.log_probabilities, list[int]()

    def noting(*arguments: Any) -> Any:
        noted.append(len(capsys.readouterr().out.splitlines()))
        return real(*arguments)

    monkeypatch.setattr(onnx_file.OnnxModel, "log_probabilities", noting)
    paths = sorted(Path("data/images/daisy").glob("*.png"))[:3]
    assert ask(*paths, model=ONNX) == 0
    assert noted == [0, 1, 1]


def test_onnx_answers_as_torch_does_from_any_folder(exporting: Path, tmp_path: Path) -> None:
    """From a folder that is no project, both give classes and probabilities of predictions.csv, one JSON object per
    line, in any order of the images."""
    rows = files.read_csv(exporting / "metrics/predictions.csv")[::-1]
    paths = [str(exporting / "data/images" / row["path"]) for row in rows]
    for model in ("model.safetensors", "model.onnx"):
        done = starts.run(command("--model", exporting / "models" / model, "--json", *paths), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert [answer["path"] for answer in answers] == paths
        assert [answer["class"] for answer in answers] == [row["prediction"] for row in rows]
        for answer, row in zip(answers, rows, strict=True):
            chances = answer["probabilities"]
            assert list(chances) == list(CLASSES)
            assert list(chances.values()) == pytest.approx([float(row[f"p_{name}"]) for name in CLASSES], abs=1e-5)
            assert answer["probability"] == chances[answer["class"]] == max(chances.values())


def test_onnx_needs_no_torch(exporting: Path) -> None:
    """Nor any other library that is slow to import: the first answer comes within a second."""
    slow = ("torch", "torchvision", "scipy", "numba", "pandas", "onnx", "onnxscript", "dvc", "timm", "tqdm")
    code = f"""if True:
        import sys
        from pathlib import Path
        from pipeline.commands import predict
        from pipeline.answers import classify
        image = next(Path("data/images").rglob("*.png"))
        assert predict.predict(classify.Request((image,), model=Path("{ONNX}"))) == 0
        sys.exit(" ".join({{*{slow}}} & sys.modules.keys()))
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=exporting, capture_output=True, text=True, check=False)
    assert (done.stderr.strip(), len(done.stdout.splitlines())) == ("", 1)


def test_the_most_likely_classes_in_every_form(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--top gives so many classes, or all; text, JSON and CSV give the same ones. A name may hold a comma."""
    image = tmp_path / 'a, "b".png'
    draw(image)

    def said(form: str, top: int | None, refused: int = 0) -> str:
        assert ask(image, model=ONNX, form=form, top=top) == refused
        return capsys.readouterr().out

    every = json.loads(said("json", None))["probabilities"]
    assert list(every) == list(CLASSES)
    two = json.loads(said("json", 2))["probabilities"]
    assert list(two.items()) == sorted(every.items(), key=lambda item: -item[1])[:2]
    assert said("text", 2) == f"{image}: {', '.join(f'{name} {chance:.4f}' for name, chance in two.items())}\n"
    assert said("text", None) == f"{said('text', 2).partition(', ' + list(two)[1])[0]}\n"
    rows = list(csv.DictReader(io.StringIO(said("csv", 9))))
    assert [(row["path"], row["rank"]) for row in rows] == [(str(image), rank) for rank in "123"]
    assert {row["class"]: float(row["probability"]) for row in rows} == every
    assert len(said("csv", None).splitlines()) == 2
    image.write_text("no image")
    assert [said(form, None, refused=1) for form in ("json", "csv")] == ["", "path,rank,class,probability,answer\n"]


def test_a_page_has_every_image_and_says_how_many_get_the_class_of_their_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its picture, and its heat map if it has one. A name of another folder is no class, and not counted."""
    for place in (*CLASSES[:2], "elsewhere"):
        draw(tmp_path / place / "photo.png")
    page, request = tmp_path / "page.html", classify.Request((tmp_path,), Path("models"))
    assert predict.predict(request, html=page) == 0
    said = capsys.readouterr()
    answers = {
        Path(path).parent.name: text.split()[0] for path, text in (line.split(": ") for line in said.out.splitlines())
    }
    right = sum(answers[label] == label for label in CLASSES[:2])
    assert f"{right} of 2 images" in said.err
    shown = parsed(page.read_text())
    assert shown.one("p", class_="hero").text.startswith(f"{100 * right / 2:.1f}")
    assert [len(shot.all("img")) for shot in shown.all("figure", class_="shot")] == [1, 1, 1]
    photo, heat_map = (str(tmp_path / name / "photo.png") for name in ("elsewhere", CLASSES[0]))
    explained = Answer("a", photo, "a", "class", {"a": 0.5}, "", heat_map)
    assert len(parsed(gallery_page.page([explained], Params(), request, set())).all("img")) == 2
    rows = {name: [*map(int, numbers)] for name, *numbers in shown.table("Answers of each class")}
    assert {name for name, numbers in rows.items() if numbers[0]} == {*answers.values()}
    assert [sum(numbers) for numbers in zip(*rows.values(), strict=True)] == [3, 2, right]
    with refuses(("--html", "value")):
        predict.predict(request, html=tmp_path / "page")


def test_an_address_and_standard_input_are_images(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have the answer of the file, under the name that was typed. What is no image is named without its query."""
    draw(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    signed = f"/b.png?signature={LONG}"
    bodies = {signed: content, "/page.png?token=w0rd": b"<html>"}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    monkeypatch.setattr(fetch, "WAITS", NO_WAITS)
    with server(lambda asked, _: reply(asked, bodies.get(asked.path, b""), 200 if asked.path in bodies else 404)) as (
        url, _,
    ):  # fmt: skip
        top = url.removesuffix("/photos.tgz")
        names = (
            f"{tmp_path}/a.png",
            f"{top.replace('http', 'HTTP')}{signed}",
            "-",
            f"{top}/page.png?token=w0rd",
            f"{top}/gone.png",
        )
        page = tmp_path / "page.html"
        words = ["--model", "model.onnx", "--csv", "--html", f"{page}", *names]
        assert predict.main(parse("predict", words, below="models")) == 1
    said = capsys.readouterr()
    rows = list(csv.DictReader(said.out.splitlines()))
    assert [row["path"] for row in rows] == [*names[:3]]
    assert len({row["probability"] for row in rows}) == 1
    assert f"predict: {top}/page.png?…: " in said.err
    assert "w0rd" not in said.err
    assert LONG not in said.err
    assert f"predict: IMAGE: {top}/gone.png: " in said.err
    assert len(parsed(page.read_text()).all("img")) == 3


def test_the_projects_own_images_are_named_by_their_split(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their labels are those of split.csv, whatever their folder is named like."""
    for name in ("models", "params.yaml", "data/images"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(folder / name)
    rows = [row | {"class": "tulip"} for row in files.read_csv(folder / "data/split.csv")]
    files.write_csv(tmp_path / "data/split.csv", list(rows[0]), [[*row.values()] for row in rows])
    monkeypatch.chdir(tmp_path)
    for split, number in ("test", 23), ("train", 10):
        assert predict.predict(classify.Request((), split=split)) == 0
        said = capsys.readouterr()
        paths = [f"data/images/{row['path']}" for row in rows if row["split"] == split]
        assert [line.rpartition(": ")[0] for line in said.out.splitlines()] == paths
        right = sum(": tulip " in line for line in said.out.splitlines())
        assert f"of split {split}, {right} of {number} images" in said.err
        assert ("10 of 10 images were used" in said.err) == (split == "train")
    with refuses(("--split", "missing")):
        predict.predict(classify.Request((), split="val"))


def test_images_that_were_trained_on_are_counted_apart(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under any name, on stderr and on the page; the others have a share of their own."""
    kinds = {row["split"]: row["path"] for row in files.read_csv(Path("data/split.csv"))}
    for split in ("train", "test"):
        (tmp_path / CLASSES[0]).mkdir(exist_ok=True)
        shutil.copy(Path("data/images", kinds[split]), tmp_path / CLASSES[0] / f"{split}.png")
    page = tmp_path / "page.html"
    assert predict.predict(classify.Request((tmp_path,)), html=page) == 0
    said = capsys.readouterr().err
    assert ["1 of 2 images were used" in said, "not used in training" in said] == [True, True]
    text = " ".join(parsed(page.read_text()).one("section", id="classes").text.split())
    assert [line.removeprefix("predict: ")[1:] in text for line in said.splitlines()[-4:-1]] == [True] * 3
    assert text.index("not used in training") < text.index("1 of 2 images were used")  # so the large figure is theirs


def test_the_photos_to_label_next_are_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So many paths of a folder, the same in every form; the page has these images in this order."""
    for number in range(6):
        draw(tmp_path / f"new/{number}.png", (50 + 20 * number, 40))
    said, page = {}, tmp_path / "next.html"
    for form in ("text", "json", "csv"):
        assert predict.predict(classify.Request((tmp_path / "new",), next=4), form, html=page) == 0
        said[form] = capsys.readouterr().out
    paths = said["text"].splitlines()
    assert len({*paths}) == 4
    assert [json.loads(line)["path"] for line in said["json"].splitlines()] == paths
    assert [row["path"] for row in csv.DictReader(said["csv"].splitlines())] == paths
    shots = [shot.one("img").attributes["alt"] for shot in parsed(page.read_text()).all("figure", class_="shot")]
    assert [path in alt for path, alt in zip(paths, shots, strict=True)] == [True] * 4


def test_a_bar_is_shown_to_a_person_who_does_not_see_the_answers(exporting: Path, tmp_path: Path) -> None:
    """The answers go to a file, the terminal shows the progress."""
    main, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    with (tmp_path / "answers").open("w") as answers, os.fdopen(terminal, "wb") as shown:
        done = subprocess.run(command("data/images/daisy"), cwd=exporting, stdout=answers, stderr=shown, check=False)
        text = os.read(main, 100_000).decode()
    os.close(main)
    assert done.returncode == 0
    assert "11/11" in text
    assert len((tmp_path / "answers").read_text().splitlines()) == 11


def trained_again(folder: Path) -> None:
    """Other weights, which model.json names; model.onnx is still of the last ones."""
    before = files.sha256(folder / "model.safetensors")
    flip(folder / "model.safetensors")
    edited("model.json", before, files.sha256(folder / "model.safetensors"))(folder)


WHOLE = "model.safetensors"


@pytest.mark.parametrize(
    ("change", "computes"),
    [
        (lambda folder: None, "model.onnx"),
        (lambda folder: flip(folder / WHOLE), "model.onnx"),
        (lambda folder: (folder / "model.onnx").unlink(), WHOLE),
        (lambda folder: files.write_text(folder / "model.onnx", ""), WHOLE),  # evaluate.onnx: false
        (lambda folder: flip(folder / "model.onnx"), WHOLE),
        (trained_again, WHOLE),
        (edited("model.json", "daisy", "oxeye"), WHOLE),
        (edited("model.json", "native", "portable"), ""),  # it would set this process to another arithmetic
    ],
    ids=["whole", "other damaged", "no file", "empty", "damaged", "of other weights", "of other classes", "portable"],
)
def test_a_folder_is_computed_from_onnx_if_it_is_of_these_weights(
    exporting: Path, tmp_path: Path, change: Callable[[Path], None], computes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise from model.safetensors, and stderr has the reason. Damaged weights are never used."""
    models = shutil.copytree(exporting / "models", tmp_path / "models")
    change(models)
    described = description.load(models)
    assert isinstance(classify.onnx_or_reason(models, described, "cpu"), str) == (computes != "model.onnx")
    assert isinstance(classify.onnx_or_reason(models, described, "cuda"), str)
    image = next((exporting / "data/images").rglob("*.png"))
    if computes:
        assert ask(image, model=models) == 0
        assert f"{models}/{computes}" in capsys.readouterr().err
    if computes == "model.onnx" and files.sha256(models / WHOLE) != files.sha256(exporting / "models" / WHOLE):
        (models / "model.onnx").unlink()
        for asked in (models, models / WHOLE):
            with refuses((models / WHOLE, "damaged")):
                ask(image, model=asked)


# ---- odd names, odd outputs, what is not a file ----


@pytest.mark.parametrize(
    ("encoding", "names"),
    [("utf-8", [r"a.png", r"caf\udce9.png", "é 花.png"]), ("ascii", [r"\xe9 \u82b1.png", r"a.png", r"caf\udce9.png"])],
)
def test_any_name_is_printed_on_any_output(
    folder: Path, tmp_path: Path, encoding: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in ASCII, in other letters, and not in UTF-8: one line per image, with Python's escapes for letters that
    the output lacks. JSON gives the names back."""
    for name in ("a.png", "é 花.png", os.fsdecode(b"caf\xe9.png")):
        draw(tmp_path / name)
    printed = {}
    for form in ("text", "json"):
        output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", output)
        assert ask(tmp_path, model=ONNX, form=form) == 0
        printed[form] = output.buffer.getvalue().decode(encoding).splitlines()
    assert sorted(line.rpartition(": ")[0] for line in printed["text"]) == sorted(
        f"{tmp_path}/{name}" for name in names
    )
    paths = [json.loads(line)["path"] for line in printed["json"]]
    assert sorted(paths) == sorted(map(str, tmp_path.iterdir()))


ACTING = "a\x1b[31m\n\r\t\x9b\x7f\u200b\u2028\u202e\U000e0001z\u202f .png"  # the last space is a letter, as in macOS


def test_a_name_that_acts_on_a_terminal_is_printed_with_escapes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every form of the output and on stderr: one line per image, no such character; JSON gives the name back."""
    good, bad, beside = tmp_path / ACTING, tmp_path / f"bad{ACTING}", tmp_path / "folder/\x1bnotes"
    for path in (good, beside.with_name("a.png")):
        draw(path)
    bad.touch()
    beside.write_text("text")
    lines = {"text": 2, "csv": 3, "json": 2}
    for form, count in lines.items():
        assert ask(good, bad, beside.parent, model=ONNX, form=form) == 1
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == count
        assert form == "json" or visible(str(good)) in out
        assert visible(str(bad)) in err
        assert visible("\x1bnotes") in err
        assert all(letter == "\n" or letter.isprintable() or letter == "\u202f" for letter in out + err)
    assert json.loads(out.splitlines()[0])["path"] == str(good)


@pytest.mark.parametrize(
    ("rest", "status", "lines"),
    [("| head -1", 128 + signal.SIGPIPE, 1), (">&-", 1, 0), (">/dev/full", 1, 0), ("2>&-", 0, 33)],
)
def test_an_output_that_is_closed_or_full(exporting: Path, rest: str, status: int, lines: int) -> None:
    """A reader that ends first, as head, ends the command in silence. A closed or full output is named, in one line."""
    to, pipe, reader = rest.partition("|")
    script = f"({' '.join(command())} data/images {to}; echo $? >status) {pipe}{reader}"
    done = subprocess.run(["bash", "-c", script], cwd=exporting, capture_output=True, text=True, check=False)
    assert (int((exporting / "status").read_text()), len(done.stdout.splitlines())) == (status, lines)
    named = [line.split(": ")[:2] for line in done.stderr.splitlines() if "33 images" not in line]
    assert named == ([["predict", "standard output"]] if status == 1 else [])
