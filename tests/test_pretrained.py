"""Pretrained weights: fetched, checked, made safe, and loaded so that a model answers as the one they came from."""

import io
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pipeline import download
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.data import fetch
from pipeline.models import network, pretrained
from tests.helpers.sources import NO_WAITS, project, reply, server


def small(classes: int = 3) -> nn.Module:
    """The smallest of the models, with statistics that are not those of a fresh one."""
    net = network.build("shufflenet_v2_x0_5", classes, seed=1)
    for name, buffer in net.named_buffers():
        if name.endswith("running_mean"):
            buffer.uniform_(-0.1, 0.1, generator=torch.Generator().manual_seed(len(name)))
    return net


def converted(folder: Path, state: Any, name: str = "mine.pth") -> Path:
    """What `convert` makes of this, saved by torch."""
    torch.save(state, folder / name)
    pretrained.convert(folder / name, folder / "converted.safetensors")
    return folder / "converted.safetensors"


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def said(folder: Path, state: Any, name: str = "mine.pth") -> str:
    """The one line a file is refused with; nothing of it may be left."""
    with pytest.raises(UserError) as refused:
        converted(folder, state, name)
    assert [path.name for path in folder.iterdir()] == [name]
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v3_small", "densenet121", "squeezenet1_1", "googlenet", "mnasnet0_5"]
)
def test_a_model_answers_as_the_one_its_weights_are_from(name: str, tmp_path: Path) -> None:
    """Loaded weights give torchvision's own model's outputs before the head, bit for bit; the head is our own."""
    torch.manual_seed(0)
    options = {"init_weights": False, "transform_input": True} if name == "googlenet" else {}
    theirs = torchvision.models.get_model(name, num_classes=10, **options)
    ours = network.build(name, 3, seed=1)
    own_head = deepcopy(network.head(ours))
    sentence = pretrained.load_into(ours, converted(tmp_path, theirs.state_dict()), network.head(ours))
    assert sentence.endswith("(10 classes there, 3 here): it begins afresh")
    assert same(network.head(ours).state_dict(), own_head.state_dict())

    before_head: dict[nn.Module, Tensor] = {}
    for net in (theirs, ours):
        network.head(net).register_forward_hook(lambda _, given, __, net=net: before_head.update({net: given[0]}))
        net.eval()(torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2)))
    assert before_head[ours].abs().sum() > 0
    assert torch.equal(before_head[ours], before_head[theirs])


@pytest.mark.parametrize("ending", [".pth", ".pt", ".safetensors"])
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s}, lambda s: {"model": s, "epoch": 3}])
def test_every_format_gives_the_same_bytes(
    ending: str, wrap: Callable[[dict[str, Tensor]], dict[str, Any]], tmp_path: Path
) -> None:
    """Weights in any of the formats, bare or as training scripts wrap them, become the same file and the same model."""
    net = small()
    torch.save(net.state_dict(), tmp_path / "plain.pth")
    pretrained.convert(tmp_path / "plain.pth", tmp_path / "plain.safetensors")
    source = tmp_path / f"mine{ending}"
    if ending == ".safetensors":
        safetensors.torch.save_file(net.state_dict(), source, metadata={"format": "pt", "by": "someone"})
    else:
        torch.save(wrap(net.state_dict()), source)
    assert pretrained.convert(source, tmp_path / "converted") == []
    assert files.sha256(tmp_path / "converted") == files.sha256(tmp_path / "plain.safetensors")
    fresh = network.build("shufflenet_v2_x0_5", 3, seed=9)
    assert pretrained.load_into(fresh, tmp_path / "converted", network.head(fresh)).endswith("tensors loaded")
    assert same(fresh.state_dict(), net.state_dict())


def test_the_prefix_of_ddp_is_taken_off_and_said(tmp_path: Path) -> None:
    """Names that all begin with `module.` lose it."""
    net = small()
    torch.save({f"module.{name}": value for name, value in net.state_dict().items()}, tmp_path / "ddp.pth")
    notes = pretrained.convert(tmp_path / "ddp.pth", tmp_path / "converted")
    assert notes == ["ddp.pth: names without the 'module.' that DistributedDataParallel puts before them"]
    assert safetensors.torch.load_file(tmp_path / "converted").keys() == net.state_dict().keys()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("features.denseblock1.denselayer6.norm.1.weight", "features.denseblock1.denselayer6.norm1.weight"),
        ("features.denseblock4.denselayer16.conv.2.weight", "features.denseblock4.denselayer16.conv2.weight"),
        ("encoder.layers.encoder_layer_0.mlp.linear_1.bias", "encoder.layers.encoder_layer_0.mlp.0.bias"),
        ("encoder.layers.encoder_layer_11.mlp.linear_2.weight", "encoder.layers.encoder_layer_11.mlp.3.weight"),
        ("features.denseblock1.denselayer6.norm1.weight", "features.denseblock1.denselayer6.norm1.weight"),
    ],
)
def test_names_from_before_torchvision_renamed_are_understood(old: str, new: str, tmp_path: Path) -> None:
    """The names in torchvision's published DenseNet and vision transformer files become today's."""
    assert list(safetensors.torch.load_file(converted(tmp_path, {old: torch.zeros(1)}))) == [new]


def test_auxiliary_heads_are_left_out_and_said(tmp_path: Path) -> None:
    """GoogLeNet's published weights hold two auxiliary heads, which our model has not."""
    whole = torchvision.models.googlenet(init_weights=False, aux_logits=True)
    torch.save(whole.state_dict(), tmp_path / "googlenet.pth")
    notes = pretrained.convert(tmp_path / "googlenet.pth", tmp_path / "converted")
    assert notes == ["googlenet.pth: 20 tensors of auxiliary heads left out; the models here have none"]
    net = network.build("googlenet", 1000, seed=0)
    pretrained.load_into(net, tmp_path / "converted", network.head(net))
    assert same(net.state_dict(), {name: whole.state_dict()[name] for name in net.state_dict()})


def test_old_files_that_count_no_batches_load(tmp_path: Path) -> None:
    """Files from before BatchNorm counted its batches fit."""
    state = {name: value for name, value in small().state_dict().items() if "num_batches" not in name}
    net = network.build("shufflenet_v2_x0_5", 3, seed=0)
    pretrained.load_into(net, converted(tmp_path, state), network.head(net))
    assert same({name: net.state_dict()[name] for name in state}, state)


def test_what_does_not_fit_is_refused_with_five_names(tmp_path: Path) -> None:
    """Missing, unexpected and misshapen tensors are named, at most five, and the model stays as it was."""
    state = small().state_dict()
    del state["conv1.0.weight"]
    state |= {"new.weight": torch.zeros(1), "conv5.0.weight": torch.zeros(2, 3)}
    net, path = small(), tmp_path / "converted.safetensors"
    before = deepcopy(net.state_dict())
    converted(tmp_path, state)
    with pytest.raises(UserError) as refused:
        pretrained.load_into(net, path, network.head(net))
    assert str(refused.value) == (
        f"train.weights: {path} does not fit the model: conv1.0.weight is missing, new.weight is not of this model, "
        f"conv5.0.weight has shape [2, 3], not [1024, 192, 1, 1]; "
        f"allowed: weights of train.model, whose head may have other classes; or none"
    )
    assert same(net.state_dict(), before)

    converted(tmp_path, network.build("resnet18", 3, seed=0).state_dict())
    with pytest.raises(
        UserError, match=r"does not fit the model: ([\w.]+ is missing, ){4}[\w.]+ is missing and \d+ more"
    ):
        pretrained.load_into(net, path, network.head(net))


@pytest.mark.parametrize(("shape", "fault"), [((5, 8), "fc.weight has shape"), (None, "fc.weight is missing")])
def test_only_the_number_of_classes_may_differ(shape: tuple[int, ...] | None, fault: str, tmp_path: Path) -> None:
    """A head that looks at another number of features, or is missing, is refused."""
    net, state = small(), small().state_dict()
    del state["fc.weight"]
    path = converted(tmp_path, state | ({} if shape is None else {"fc.weight": torch.zeros(shape)}))
    with pytest.raises(UserError, match=f"does not fit the model: {fault}"):
        pretrained.load_into(net, path, network.head(net))


class Harmful:
    """A pickle that runs a command when it is loaded by a reader that trusts it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("state", [small(), {"state_dict": {}, "by": Harmful(Path("trace"))}])
def test_a_pickle_with_code_is_refused_and_does_not_run(
    state: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole saved model, or anything else that is run when it is read, is refused with what to do."""
    monkeypatch.chdir(tmp_path)
    refusal = said(tmp_path, state)
    assert "mine.pth holds Python objects besides tensors" in refusal
    assert "save its network.state_dict()" in refusal


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        ([torch.zeros(1)], "no dict"),
        ({}, "a dict with nothing in it"),
        ({"epoch": 3, "net": {}}, "a dict with epoch, net"),
        ({"state_dict": {"a": 1}}, "a dict with a"),
    ],
)
def test_what_holds_no_weights_is_refused(state: Any, holds: str, tmp_path: Path) -> None:
    """A file whose content is not a dict of tensors is refused with what it holds."""
    assert f"mine.pth holds {holds}; allowed: a dict of tensors by name" in said(tmp_path, state)


def test_a_missing_file_and_an_unknown_format_are_refused(tmp_path: Path) -> None:
    """A path of nothing, and a name with another ending, are refused with what is allowed."""
    with pytest.raises(UserError, match=r"no\.pth': there is no such file; allowed: none, imagenet"):
        pretrained.convert(tmp_path / "no.pth", tmp_path / "converted")
    assert "has no known format; allowed: none, imagenet, .pth, .pt, .safetensors" in said(tmp_path, {}, "mine.ckpt")


def saved(ending: str) -> bytes:
    """A small file of weights."""
    tensors = {"fc.weight": torch.arange(12.0).reshape(3, 4), "fc.bias": torch.arange(3.0)}
    if ending == ".safetensors":
        return safetensors.torch.save(tensors)
    stream = io.BytesIO()
    torch.save(tensors, stream)
    return stream.getvalue()


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(ending: str, share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Wherever a file of weights ends too early, it is refused by name, and nothing is written."""
    folder, content = tmp_path_factory.mktemp("cut"), saved(ending)
    (folder / f"cut{ending}").write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match=f"^train.weights: .*cut{ending} "):
        pretrained.convert(folder / f"cut{ending}", folder / "converted")
    assert [path.name for path in folder.iterdir()] == [f"cut{ending}"]


# Published weights


def test_every_model_has_published_weights_that_can_be_checked() -> None:
    """torchvision's default weights of each model have an https address with a part of their hash."""
    for name in network.names():
        url, prefix = pretrained.published(name)
        assert url.startswith("https://")
        assert len(prefix) >= 8


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/resnet18-f37072fd.pth",
        "file:///resnet18-f37072fd.pth",
        "https://127.0.0.1/resnet18-f37072f.pth",
        "https://127.0.0.1/resnet18.pth",
        "https://127.0.0.1/resnet18-f37072fz.pth",
    ],
)
def test_an_address_that_cannot_be_checked_is_refused(url: str) -> None:
    """Another scheme than https, or less than eight digits of the hash, is refused by name."""
    with pytest.raises(UserError, match=f"'{url}', which cannot be checked; allowed: an https:// address"):
        pretrained.hash_prefix(url)


def published(folder: Path) -> tuple[bytes, str, str]:
    """A file of weights as torchvision publishes them: its bytes, its name, what its SHA-256 begins with."""
    torch.save(small(1000).state_dict(), folder / "published")
    digest = files.sha256(folder / "published")
    content = (folder / "published").read_bytes()
    files.remove(folder / "published")
    return content, f"shufflenetv2_x0.5-{digest[:10]}.pth", digest[:10]


def test_published_weights_are_fetched_kept_mended_and_loaded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A failed try is repeated; the second time needs no network; a damaged file is fetched again; the weights load."""
    content, name, prefix = published(tmp_path)
    archives = tmp_path / "archives"
    with server(lambda request, n: reply(request, b"", 503) if n == 1 else reply(request, content)) as (base, asked):
        url = base.replace("photos.tgz", name)
        kept = fetch.obtain_weights(url, prefix, archives, NO_WAITS)
        assert fetch.obtain_weights(url, prefix, archives, NO_WAITS) == kept == archives / name
        assert len(asked) == 2
        kept.write_bytes(b"damaged")
        assert fetch.obtain_weights(url, prefix, archives, NO_WAITS).read_bytes() == content
        assert len(asked) == 3
    assert f"{kept} has another hash than its name" in capfd.readouterr().err
    net = network.build("shufflenet_v2_x0_5", 3, seed=0)
    pretrained.convert(kept, tmp_path / "converted")
    assert "(1000 classes there, 3 here)" in pretrained.load_into(net, tmp_path / "converted", network.head(net))


@pytest.mark.parametrize(
    ("status", "body", "refusal"),
    [
        (200, b"something else", r"has SHA-256 \w+, its name promises \w+…; nothing was kept"),
        (404, b"", "cannot be downloaded: 404"),
        (500, b"", "5 tries failed, the last: 500"),
    ],
)
def test_what_is_not_the_published_file_is_refused(status: int, body: bytes, refusal: str, tmp_path: Path) -> None:
    """A file with another hash, a missing one and a broken server are refused with the way without network."""
    _, name, prefix = published(tmp_path)
    with (
        server(lambda request, n: reply(request, body, status)) as (url, _),
        pytest.raises(UserError, match=rf"^train.weights: .*{refusal}.*name it in train\.weights"),
    ):
        fetch.obtain_weights(url.replace("photos.tgz", name), prefix, tmp_path / "archives", NO_WAITS)
    assert list((tmp_path / "archives").iterdir()) == []


# The stage


def test_the_stage_brings_a_file_of_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`train.weights` with a file's path leaves <train.model>.safetensors; a later failure leaves that as it is."""
    monkeypatch.chdir(tmp_path)
    config = project(tmp_path, source="inbox")

    def asking(path: str) -> Any:
        changed = {"model": "shufflenet_v2_x0_5", "weights": path}
        return config.model_copy(update={"train": config.train.model_copy(update=changed)})

    torch.save({"state_dict": small().state_dict()}, "mine.pth")
    download.bring_weights(asking("mine.pth"))
    [brought] = Path(config.paths.weights).iterdir()
    assert brought.name == "shufflenet_v2_x0_5.safetensors"
    assert same(safetensors.torch.load_file(brought), small().state_dict())
    assert capfd.readouterr().out == "download: weights of shufflenet_v2_x0_5 in data/weights, from mine.pth\n"
    with pytest.raises(UserError, match="there is no such file"):
        download.run(asking("other.pth"))
    assert list(Path(config.paths.weights).iterdir()) == [brought]
    assert not Path(config.paths.images).exists()
