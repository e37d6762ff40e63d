"""The page of `perennial share`: in a real browser it gives the answers of `predict`."""

import re
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pipeline.answers import page_network, share_page
from pipeline.commands import share
from pipeline.config.params import Fit
from pipeline.dataset.normalization import Normalization
from pipeline.evaluation import acceptance, onnx_export, onnx_file, photos
from pipeline.loader import center
from pipeline.models import network
from pipeline.models.description import Description, View
from pipeline.models.exported import ExportedModel
from pipeline.reporting import rendering
from tests.helpers.browser import needs_chromium, opened
from tests.helpers.refusals import refuses
from tests.test_exact import model

pytestmark = pytest.mark.slow("networks in Chromium; make test has Chromium with the report's pages")

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["model"]  # a fixture: a network of whole numbers
CLASSES = ("a", "b", "</script><b>")
LARGER = pytest.mark.nightly("half a minute beside other work; make test-ci has two small networks")
LARGER_NETWORKS = ("resnet18", "timm/tf_efficientnet_lite0")
VIEW = View(96, 96, 64)
SIZES = ((300, 200), (200, 333), (256, 256), (40, 700))
# Of the chosen file: the logits, the probabilities, and whether the page accepts it; and the pixels of a view.
ASK = """async () => {
  const { logits, probabilities, isAccepted } = await classify(document.querySelector("input").files[0]);
  return [logits, probabilities, isAccepted];
}"""
SEE = """async (view) => {
  const image = await decode(document.querySelector("input").files[0]);
  return [...crop(square(image, view), view).data];
}"""


def write_model(path: Path, model: ExportedModel, limit: float = 0) -> Path:
    """A model.onnx of this model, with so high a limit."""
    name = getattr(model.net, "name", "resnet18")
    mean, std = model.normalization.mean, model.normalization.std
    description = Description(name, model.classes, model.view, mean, std, "last", 1)
    scores = acceptance.make("0" * 64, 0.95, [limit] * 60, len(model.classes))
    path.write_bytes(onnx_export.content(model, description, "0" * 64, scores))
    return path


def seen(view: View, image: Path) -> NDArray[np.float32]:
    """The pixels of `predict`."""
    loaded = photos.load_image(image, view, 10**8)
    (box,) = center.eval_boxes(np.array([loaded.size], np.int32), view.packed_size, view.resize, view.crop)
    return center.cut(loaded.pixels, box, view.crop)


def expected(path: Path, image: Path) -> NDArray[np.float32]:
    """The logits of `predict`."""
    runtime = onnx_file.load(path, 1)
    pixels = seen(runtime.view, image)
    logits: NDArray[np.float32] = runtime.session.run(["logits"], {"pixels": pixels[None]})[0][0]
    return logits


def untrained(name: str) -> ExportedModel:
    """A model of drawn weights."""
    net = network.build(name, len(CLASSES), seed=1).eval()
    return ExportedModel(net, CLASSES, VIEW, Normalization((0.5,) * 3, (0.25,) * 3))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small model in float32, beside its model.onnx."""
    folder = tmp_path_factory.mktemp("small")
    file = write_model(folder / "model.onnx", untrained("mobilenet_v3_small"), 1.0)
    (folder / "page.html").write_text(share_page.page(file))
    return folder / "page.html"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> list[Path]:
    """Photos of several shapes, and a JPEG that EXIF turns."""
    folder, files = tmp_path_factory.mktemp("images"), sorted(photos.glob("*/*.jpg"))
    for index, (file, size) in enumerate(zip(files, SIZES, strict=False)):
        Image.open(file).convert("RGB").resize(size).save(folder / f"{index}.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(files[-1]).convert("RGB").save(folder / "turned.jpg", exif=exif, quality=90)
    return sorted(folder.iterdir())


@needs_chromium
def test_a_browser_sees_the_pixels_of_predict(browser: "Browser", small: Path, images: list[Path]) -> None:
    """The same pixels, to the last bit, for every shape of an image and every prepare.fit; nothing is requested."""
    fits: tuple[Fit, ...] = "none", "crop", "pad", "squash"
    with opened(browser, small) as page:
        for image in images:
            page.set_input_files("input", str(image))
            for view in [View(64, 60 if fit == "none" else 56, 56, fit=fit) for fit in fits]:
                pixels = page.evaluate(SEE, asdict(view))
                assert np.array_equal(np.array(pixels, np.float32), seen(view, image).ravel()), (image.name, view.fit)


@needs_chromium
def test_a_browser_gives_the_bits_of_predict(
    browser: "Browser", model: ExportedModel, images: list[Path], tmp_path: Path
) -> None:
    """The same logits with a network of whole numbers, and probabilities that differ in the last digit at most."""
    file = write_model(tmp_path / "model.onnx", replace(model, classes=CLASSES, view=VIEW))
    (tmp_path / "page.html").write_text(share_page.page(file))
    with opened(browser, tmp_path / "page.html") as page:
        for image in images[:2]:
            page.set_input_files("input", str(image))
            logits, probabilities, _ = page.evaluate(ASK)
            theirs = expected(file, image)
            powers = np.exp(theirs.astype(np.float64) - theirs.max())
            assert logits == theirs.tolist()
            assert np.allclose(probabilities, powers / powers.sum(), rtol=0, atol=1e-15)


@needs_chromium
@pytest.mark.parametrize("name", ["squeezenet1_1", *(pytest.param(name, marks=LARGER) for name in LARGER_NETWORKS)])
def test_a_browser_computes_networks_in_float32(
    browser: "Browser", images: list[Path], name: str, tmp_path: Path
) -> None:
    """The logits differ by less than a thousandth of their largest."""
    file = write_model(tmp_path / "model.onnx", untrained(name))
    (tmp_path / "page.html").write_text(share_page.page(file))
    with opened(browser, tmp_path / "page.html") as page:
        page.set_input_files("input", str(images[0]))
        logits = page.evaluate(ASK)[0]
    theirs = expected(file, images[0])
    assert np.abs(np.array(logits) - theirs).max() < 1e-3 * np.abs(theirs).max()


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_a_person_sees_answers(browser: "Browser", small: Path, images: list[Path], width: int, tmp_path: Path) -> None:
    """A text file, then two photos: above its sentence two answers in order. The model's limit accepts no photo."""
    (tmp_path / "note.jpg").write_text("no image")
    with opened(browser, small, width=width) as page:
        for number, some in ((1, [tmp_path / "note.jpg"]), (3, images[:2])):
            page.set_input_files("input", list(map(str, some)))
            page.locator(".file").nth(number - 1).wait_for()
        assert page.locator("#results canvas").count() == 2
        assert page.locator("#results b").count() == 0
        names = page.locator(".file").all_inner_texts()
        assert names == [images[0].name, images[1].name, "note.jpg"]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        logits, _, is_accepted = page.evaluate(ASK)
    theirs = expected(small.with_name("model.onnx"), images[0])
    assert np.abs(np.array(logits) - theirs).max() < 1e-3 * np.abs(theirs).max()
    assert not is_accepted


@needs_chromium
def test_a_page_that_computes_something_else_gives_no_answer(
    browser: "Browser", small: Path, images: list[Path], tmp_path: Path
) -> None:
    """A page whose fixed pixels get another answer than onnxruntime's says so."""
    settings = re.compile(r'"check": \[(-[0-9.]+)')
    text, count = settings.subn(lambda match: f'"check": [{float(match[1]) * 1.01}', small.read_text())
    (tmp_path / "page.html").write_text(text)
    with opened(browser, tmp_path / "page.html") as page:
        page.set_input_files("input", str(images[0]))
        page.locator(".file").wait_for()
        assert page.locator("#results canvas").count() == 0
        assert "other answers" in page.inner_text("#results")
    assert count == 1


def test_the_page_has_the_operators_that_it_accepts() -> None:
    """page_network.OPERATORS are those of network.js."""
    script = (rendering.TEMPLATES / "network.js").read_text()
    table = script[script.index("const OPERATORS") : script.index("// The result of the last step")]
    assert set(re.findall(r"\b([A-Z]\w+): ", table)) == page_network.OPERATORS


def test_what_is_no_page_is_refused(with_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another ending, no model, another file, and an operator that the page has not."""
    monkeypatch.chdir(with_onnx)

    def ask(file: object, model: object = "") -> None:
        share.main(Namespace(file=str(file), model=str(model), below=""))

    with refuses(("FILE", "value")):
        ask(tmp_path / "page.txt")
    with refuses((str(tmp_path / "model.onnx"), "missing")):
        ask(tmp_path / "page.html", tmp_path / "model.onnx")
    with refuses(("models/model.onnx", "pair")):  # a network that moves channels
        ask(tmp_path / "page.html", "models/model.onnx")
    assert not (tmp_path / "page.html").exists()
