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
import subprocess
import sys
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
from pipeline.planning import survey
from pipeline.sources.torchvision_sets import SETS, write
from pipeline.stages import download, prepare, split
from tests.conftest import PROJECT, change, on_cpu, write_params
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
def config(request: pytest.FixtureRequest, raw: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> Params:
    """Params that name the set of the test, in the current folder."""
    monkeypatch.chdir(tmp_path)
    grey = {"split__min_side": 28, "split__phash_distance": 0} if request.param in rules.GREY_SETS else {}
    write_params(tmp_path / "params.yaml", on_cpu(raw, data__source=request.param, prepare__size=32, **grey))
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
    Path("data/corrections.csv").parent.mkdir(exist_ok=True)
    Path("data/corrections.csv").write_text("path,label,reason\n")
    download.run(config)
    split.run(config)
    prepare.run(config)
    return {path: content for path, content in contents(Path("data")).items() if not path.startswith("archives/")}


@pytest.mark.parametrize("config", FILES, indirect=True)
def test_the_given_split_is_kept_and_every_run_has_the_same_bytes(
    config: Params, served: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """No image leaves the test of the set. A missing val is cut from train. What was downloaded is enough for another
    run; of what torchvision unpacked, nothing stays.
    """
    parts, archives = SETS[config.data.source].arguments, dict(served)
    first = run_stages(config)
    counts = dict.fromkeys(("train", "val", "test"), 0)
    for row in files.read_csv(Path("data/split.csv")):
        part = row["path"].split("/")[0]
        assert row["split"] == part or (part == "train" and row["split"] == "val" and "val" not in parts)
        counts[row["split"]] += 1
    assert sum(counts.values()) == sum(SIZES[part] for part in parts)
    assert all(counts.values())
    assert {Path(name).name: content for name, content in contents(Path("data/archives")).items()} == archives
    assert capsys.readouterr().out.count(f"download: {config.data.source}: ") == len(parts)
    served.clear()  # without the network
    assert run_stages(config) == first


@pytest.mark.parametrize("config", [MNIST, FLOWERS], indirect=True)
@pytest.mark.usefixtures("served")
def test_the_pixels_are_those_of_the_set(config: Params) -> None:
    """An array becomes a PNG file with its number in the set, in the folder of its class. A file keeps its bytes."""
    download.run(config)
    images = contents(Path("data/images"))
    if config.data.source == FLOWERS:
        assert len(images) == 62
        assert all(content == jpeg(int(Path(name).stem.removeprefix("image_"))) for name, content in images.items())
        assert {name.split("/")[1] for name in images} == {"pink primrose", "canterbury bells"}
    else:
        assert len(images) == SIZES["train"] + SIZES["test"]
        for number, pixels in enumerate(arrays("test", 28, 28)):
            name = f"test/{('0 - zero', '2 - two')[number % 2]}/{number + 1:05d}.png"
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(images[name]))), pixels)


# Sends SIGKILL to itself when torchvision gives the 8th image of the train split.
KILLED = """
import os, pathlib, signal, sys, torchvision
from pipeline.__main__ import main
kind, (address, *sums) = torchvision.datasets.MNIST, sys.argv[1:]
kind.mirrors, kind.resources = [address], [tuple(each.split("=")) for each in sums]
read = kind.__getitem__
kind.__getitem__ = lambda self, index: os.kill(os.getpid(), signal.SIGKILL) if index == 7 else read(self, index)
main(["download"])
"""


@pytest.mark.parametrize("config", [MNIST], indirect=True)
def test_a_killed_download_leaves_nothing_that_counts(config: Params, served: dict[str, bytes]) -> None:
    """The next run has the bytes of a run that nobody killed, also if half a file was unpacked, or downloaded.

    3 seconds: the killed program imports torch.
    """
    images = Path("data/images")
    kind = kind_of(MNIST)
    sums = [f"{name}={each}" for name, each in kind.resources]
    command = [sys.executable, "-c", KILLED, kind.mirrors[0], *sums]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(PROJECT)}, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
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
@pytest.mark.parametrize("change_files", [dict.clear, lambda sent: sent.update({min(sent): b"another content"})])
def test_without_the_set_the_source_is_refused(config: Params, served: dict[str, bytes], change_files: Any) -> None:
    """The server sends nothing, or something else. Earlier images stay."""
    Path("data/images").mkdir(parents=True)
    Path("data/images/before.png").touch()
    change_files(served)
    with refuses(("data.source", "failed")) as error:
        download.run(config)
    assert "data/archives/" in error.value.faults[0].remedy
    assert list(contents(Path("data/images"))) == ["before.png"]


def test_the_params_name_the_sets() -> None:
    """Every set is a value of data.source, and one of torchvision's."""
    assert [source for source in get_args(params.Source) if "/" in source] == list(SETS)
    assert set(rules.GREY_SETS) < set(SETS)
    assert all(kind_of(source) for source in SETS)


def test_start_takes_a_set_and_its_settings(raw: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    """Small grey images need two other settings of the split. Another source has the usual ones again."""
    monkeypatch.chdir(tmp_path)
    config = params.parse(raw)
    grey = params.with_values(config, start.source(config, MNIST))
    assert (grey.data.source, grey.split.min_side, grey.split.phash_distance) == (MNIST, 28, 0)
    assert start.source(grey) == {"split.min_side": 28, "split.phash_distance": 0}
    assert params.with_values(grey, start.source(grey, CIFAR10)).split == config.split
    assert start.source(config, CIFAR10) == {"data.source": CIFAR10}
    with refuses(("data.source", "value")):
        start.situation(config, "torchvision/NMIST")


@pytest.mark.parametrize(("source", "val"), [(MNIST, 6000), (FLOWERS, 1020)])
def test_the_images_are_counted_before_they_are_here(raw: dict[str, Any], source: str, val: int) -> None:
    """So the time of a run is estimated before the download."""
    config = params.parse(change(raw, data__source=source))
    result, images = survey.survey(config), SETS[source].images
    expected = {"train": result.images - val - images["test"], "val": val, "test": images["test"]}
    assert result.parts(config.split) == expected


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
