"""`data.source: torchvision/<name>`: torchvision downloads, checks and reads; the split of the set is kept.

The files of the sets are made here in the sets' own formats, and a server on this machine sends them.
"""

import gzip
import hashlib
import io
import itertools
import os
import signal
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torchvision
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from pipeline.base import files
from pipeline.checks import rules
from pipeline.commands import start
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import corrections
from pipeline.planning import survey
from pipeline.sources.torchvision_sets import SETS, write
from pipeline.stages import download, prepare, split
from tests.conftest import change, on_cpu, write_params
from tests.helpers.datasets import noise_image
from tests.helpers.refusals import refuses
from tests.helpers.sources import contents, reply, server, tar_bytes

MNIST, CIFAR10, FLOWERS = "torchvision/MNIST", "torchvision/CIFAR10", "torchvision/Flowers102"
PETS = "torchvision/OxfordIIITPet"
SIZES = {"train": 40, "val": 12, "test": 10}


def arrays(split_name: str, *shape: int) -> NDArray[np.uint8]:
    """The images of a split: noise, all different."""
    random = np.random.default_rng(SIZES[split_name])
    return random.integers(0, 256, (SIZES[split_name], *shape), np.uint8)


def label(number: int) -> int:
    """The class of an image: two classes, so that some of the set's have no image."""
    return 2 * (number % 2)


def jpeg(seed: int) -> bytes:
    content = io.BytesIO()
    noise_image(seed, 40).save(content, "JPEG")
    return content.getvalue()


def mnist_files() -> dict[str, bytes]:
    """The four files of MNIST: a header with the sizes, then the bytes."""
    result = {}
    for prefix, name in (("train", "train"), ("t10k", "test")):
        labels = np.array([label(number) for number in range(SIZES[name])], np.uint8)
        for kind, array in (("images-idx3", arrays(name, 28, 28)), ("labels-idx1", labels)):
            header = struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape)
            result[f"{prefix}-{kind}-ubyte.gz"] = gzip.compress(header + array.tobytes(), mtime=0)
    return result


def mat(**tables: Any) -> bytes:
    content = io.BytesIO()
    savemat(content, tables)
    return content.getvalue()


def flowers_files() -> dict[str, bytes]:
    """The three files of Flowers102. Its numbers of images and classes begin at 1."""
    ends = np.cumsum([0, *SIZES.values()])
    ids = [np.arange(first, last) + 1 for first, last in itertools.pairwise(ends)]
    images = gzip.compress(tar_bytes({f"jpg/image_{number:05d}.jpg": jpeg(number) for number in range(1, 63)}))
    labels = np.array([label(number) + 1 for number in range(62)])
    names = ("trnid", "valid", "tstid")
    return {
        "102flowers.tgz": images,
        "imagelabels.mat": mat(labels=labels),
        "setid.mat": mat(**dict(zip(names, ids, strict=True))),
    }


def pets_files() -> dict[str, bytes]:
    """The two archives of OxfordIIITPet. The archive of images has files that are no images, as the real one."""
    breeds, lists, images = ("Abyssinian", "american_bulldog"), {}, {"images/Abyssinian_100.mat": b"no image"}
    for name, part in (("trainval", "train"), ("test", "test")):
        lines = []
        for number in range(SIZES[part]):
            image = f"{breeds[number % 2]}_{name}{number}"
            images[f"images/{image}.jpg"] = jpeg(1000 * SIZES[part] + number)
            lines.append(f"{image} {number % 2 + 1} {number % 2 + 1} 1\n")
        lists[f"annotations/{name}.txt"] = "".join(lines).encode()
    return {"images.tar.gz": gzip.compress(tar_bytes(images)), "annotations.tar.gz": gzip.compress(tar_bytes(lists))}


FILES = {MNIST: mnist_files, FLOWERS: flowers_files, PETS: pets_files}


def attributes(source: str, served: Mapping[str, bytes], address: str) -> dict[str, Any]:
    """The attributes of torchvision's class that say where its files are, and which MD5 sums they have."""
    sums = {name: hashlib.md5(content).hexdigest() for name, content in served.items()}
    if source == MNIST:
        return {"mirrors": [address], "resources": list(sums.items())}
    if source == FLOWERS:
        keys = ("image", "label", "setid")
        return {"_download_url_prefix": address, "_file_dict": dict(zip(keys, sums.items(), strict=True))}
    return {"_RESOURCES": [(f"{address}{name}", each) for name, each in sums.items()]}


def kind_of(source: str) -> Any:
    return getattr(torchvision.datasets, Path(source).name)


@pytest.fixture
def config(request: pytest.FixtureRequest, raw: dict[str, Any], here: Path) -> Params:
    """Params that name the set of the test, in the current folder."""
    grey = {"split__min_side": 28, "split__phash_distance": 0} if request.param in rules.GREY_SETS else {}
    files.write_text(corrections.FILE, corrections.EMPTY)
    write_params(here / "params.yaml", on_cpu(raw, data__source=request.param, prepare__size=32, **grey))
    return params.load()


@pytest.fixture
def served(config: Params, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """The files that a server sends for the set of the params: name → content. For other names it sends nothing."""
    source = config.data.source
    sent = FILES[source]()

    def answer(request: Any, number: int) -> None:
        if content := sent.get(Path(request.path).name):
            reply(request, content)

    with server(answer) as (address, _):
        for name, value in attributes(source, sent, f"{address.rpartition('/')[0]}/").items():
            monkeypatch.setattr(kind_of(source), name, value)
        yield sent


def run_stages(config: Params) -> dict[str, bytes]:
    """Download, split and prepare; what they have written below data/, by its path."""
    download.run(config)
    split.run(config)
    prepare.run(config)
    return {path: content for path, content in contents(Path("data")).items() if not path.startswith("archives/")}


def check_pixels(source: str, images: dict[str, bytes]) -> None:
    """An array becomes a PNG file with its number in the set, in the folder of its class. A file keeps its bytes."""
    if source == FLOWERS:
        assert len(images) == 62
        assert all(content == jpeg(int(Path(name).stem.removeprefix("image_"))) for name, content in images.items())
        assert {name.split("/")[1] for name in images} == {"pink primrose", "canterbury bells"}
    if source == MNIST:
        assert len(images) == SIZES["train"] + SIZES["test"]
        for number, pixels in enumerate(arrays("test", 28, 28)):
            name = f"test/{('0 - zero', '2 - two')[number % 2]}/{number + 1:05d}.png"
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(images[name]))), pixels)


@pytest.mark.parametrize("config", FILES, indirect=True)
def test_the_given_split_is_kept_and_every_run_has_the_same_bytes(
    config: Params, served: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """No image leaves the test of the set. A missing val is cut from train. Another run needs no network."""
    parts, archives = SETS[config.data.source].arguments, dict(served)
    first = run_stages(config)
    check_pixels(config.data.source, contents(Path("data/images")))
    counts = Counter[str]()
    for row in files.read_csv(Path("data/split.csv")):
        part = row["path"].split("/")[0]
        assert row["split"] == part or (part == "train" and row["split"] == "val" and "val" not in parts)
        counts[row["split"]] += 1
    assert (counts.total(), set(counts)) == (sum(SIZES[part] for part in parts), {"train", "val", "test"})
    assert {Path(name).name: content for name, content in contents(Path("data/archives")).items()} == archives
    assert capsys.readouterr().out.count(f"download: {config.data.source}: ") == len(parts)
    served.clear()
    assert run_stages(config) == first


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the server has a thread
@pytest.mark.parametrize("config", [MNIST], indirect=True)
def test_a_killed_download_leaves_nothing_that_counts(config: Params, served: dict[str, bytes]) -> None:
    """The next run has the bytes of a run that nobody killed, also if half a file was unpacked, or downloaded."""
    images = Path("data/images")
    if (process := os.fork()) == 0:
        read = kind_of(MNIST).__getitem__
        kind_of(MNIST).__getitem__ = lambda self, index: os.kill(os.getpid(), 9) if index == 7 else read(self, index)
        try:
            download.run(config)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert not images.exists()
    home = Path("data/archives") / MNIST / "MNIST/raw"
    (home / "train-images-idx3-ubyte").write_bytes((home / "train-images-idx3-ubyte").read_bytes()[:100])
    (home / "t10k-labels-idx1-ubyte.gz").write_bytes(served["t10k-labels-idx1-ubyte.gz"][:10])
    download.run(config)
    again = contents(images)
    files.remove(Path("data"))
    download.run(config)
    assert contents(images) == again
    assert len(again) == SIZES["train"] + SIZES["test"]
    assert sorted(path.name for path in Path("data").iterdir()) == ["archives", "images"]


@pytest.mark.parametrize("config", FILES, indirect=True)
@pytest.mark.parametrize("content", [b"", b"another content"])
def test_without_the_set_the_source_is_refused(config: Params, served: dict[str, bytes], content: bytes) -> None:
    """The server sends nothing, or something else. Earlier images stay."""
    files.write_text(Path("data/images/before.png"), "")
    served |= dict.fromkeys(served, content)
    with refuses(("data.source", "failed")) as error:
        download.run(config)
    assert "data/archives/" in error.value.faults[0].remedy
    assert list(contents(Path("data/images"))) == ["before.png"]


def test_start_takes_a_set_and_its_settings(here: Path, raw: dict[str, Any]) -> None:
    """Small grey images need two other settings of the split. Another source has the usual ones again."""
    config = params.parse(raw)
    grey = params.with_values(config, start.source(config, MNIST))
    assert (grey.data.source, grey.split.min_side, grey.split.phash_distance) == (MNIST, 28, 0)
    assert start.source(grey) == {"split.min_side": 28, "split.phash_distance": 0}
    assert params.with_values(grey, start.source(grey, CIFAR10)).split == config.split
    assert start.source(config, CIFAR10) == {"data.source": CIFAR10}
    with refuses(("data.source", "value")):
        start.situation(config, "torchvision/NMIST")


@pytest.mark.parametrize("source", [name for name in get_args(params.Source) if "/" in name])
def test_the_images_are_counted_before_they_are_here(raw: dict[str, Any], source: str) -> None:
    """So the time of a run is estimated before the download. Every set is one of torchvision's."""
    config = params.parse(change(raw, data__source=source))
    result, images = survey.survey(config), SETS[source].images
    val = {MNIST: 6000, FLOWERS: 1020}.get(source, result.parts(config.split)["val"])
    expected = {"train": result.images - val - images["test"], "val": val, "test": images["test"]}
    assert result.parts(config.split) == expected
    assert kind_of(source)


def test_nothing_is_removed_behind_a_link(tmp_path: Path) -> None:
    """What torchvision has not downloaded would be."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/photo.jpg").touch()
    home = tmp_path / "torchvision/CIFAR10"
    home.parent.mkdir()
    home.symlink_to(tmp_path / "own")
    with refuses((home, "value")):
        write("torchvision/CIFAR10", tmp_path, tmp_path, 1)
    assert (tmp_path / "own/photo.jpg").exists()
