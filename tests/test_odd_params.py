"""Any content of params.yaml is either accepted, or refused with the key, the value and what is allowed."""

import subprocess
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from pipeline.base.errors import UserError
from pipeline.config import params, validity
from pipeline.config.machine import Machine
from pipeline.config.params import Params
from pipeline.data import fetch
from tests.conftest import PROJECT, change, on_cpu

HERE = Machine(cuda_devices=0, apex="missing", compiler=True, cores=2, project="/home/me/project")


def said(path: Path, text: str) -> str:
    """The error message for params with this text; empty if they are accepted."""
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert isinstance(params.load(path), Params)
    except UserError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("train: &a {inner: *a}", "more than 10 levels or 1,000 values"),
        ("a: &a [1, 1]\nb: &b [" + "*a, " * 9 + "]\nc: &c [" + "*b, " * 9 + "]\nd: [" + "*c, " * 9 + "]",
         "more than 10 levels or 1,000 values"),
        ("train: " + "[" * 1000 + "]" * 1000, "more than 10 levels; allowed: tables in tables"),
        ("train: " + "[" * 20 + "]" * 20, "train.0.0: more than 10 levels or"),
        ("? [a, b]\n: 1", "params.yaml: the key ('a', 'b') is not allowed; allowed: a word; quote it"),
        ("train:\n  2024-05-01: 1", "train: the key datetime.date(2024, 5, 1) is not allowed; allowed: a word"),
        ("train:\n  ? !!binary aGVsbG8=\n  : 1", "train: the key b'hello' is not allowed; allowed: a word"),
        ("train: {1: 2}", "train: the key 1 is not allowed; allowed: a word"),
        ("train: {model: 2024-05-01}",
         "train.model: datetime.date(2024, 5, 1) is not allowed; allowed: text, numbers, true, false"),
        ("train: {model: !!set {a, b}}", "train.model: {'a', 'b'} is not allowed; allowed: text, numbers, true"),
        ('train: {model: "a\\nb"}', "train.model: 'a\\nb' is not allowed; allowed: text without control characters"),
        ('train: {model: "\\ud800"}', r"train.model: '\ud800' is not allowed; allowed: text without control"),
        ("train: {seed: " + "9" * 5000 + "}", "not readable as YAML: Exceeds the limit"),
        ("train: {seed: 0x" + "f" * 5000 + "}", "train.seed: a number of 20,000 bits is not allowed; allowed: a whole"),
        ("train: {model: " + "x" * 5000 + "}", f"train.model: '{'x' * 199}… (5,002 characters) is not allowed"),
        ("train: 2024-99-99", "not readable as YAML: month must be in 1..12; git diff"),
        ("train: !!python/object:os.system {}", "not readable as YAML: could not determine a constructor"),
    ],
)  # fmt: skip
def test_odd_documents_are_refused_in_a_line(tmp_path: Path, text: str, sentence: str) -> None:
    """Refused YAML: anchors that contain themselves, dates, bytes, very long numbers."""
    found = said(tmp_path / "params.yaml", text)
    assert any(sentence in line for line in found.splitlines()), found
    assert all(len(line) < 600 for line in found.splitlines())


def test_a_file_that_is_far_too_long_is_not_read(tmp_path: Path) -> None:
    """A file of 50 MB is refused before it is parsed, and so are a folder and a pipe."""
    path = tmp_path / "params.yaml"
    with path.open("w") as file:
        file.write("train: {model: ")
        file.truncate(50_000_000)
    with pytest.raises(UserError, match=r"more than 100,000 bytes; allowed: up to that"):
        params.load(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="not a plain file; restore it"):
        params.load(path)
    path.rmdir()
    subprocess.run(["mkfifo", path], check=True)
    with pytest.raises(UserError, match="not a plain file; restore it"):
        params.load(path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train__lr": 1e308}, "train.lr: 1e+308 is not allowed; allowed: less than or equal to 1000"),
        ({"train__weight_decay": 1e308}, "train.weight_decay: 1e+308 is not allowed; allowed: less than or equal to"),
        ({"train__head_lr_factor": 1e308}, "train.head_lr_factor: 1e+308 is not allowed; allowed: less than or"),
        ({"train__mixup": 1e308}, "train.mixup: 1e+308 is not allowed; allowed: less than or equal to 100"),
        ({"train__clip_norm": 1e308}, "train.clip_norm: 1e+308 is not allowed; allowed: less than or equal to"),
        ({"train__crop_ratio": [1e-308, 1e308]}, "train.crop_ratio.1: 1e+308 is not allowed; allowed: less than or"),
        ({"train__epochs": 10**8}, "train.epochs: 100000000 is not allowed; allowed: less than or equal to 100000"),
        ({"train__threads": 100_000}, "train.threads: 100000 is not allowed; allowed: less than or equal to 1024"),
        ({"train__batch_size": 10**12}, "train.batch_size: 1000000000000 is not allowed; allowed: less than or"),
        ({"run__processes": 1_000_000}, "run.processes: 1000000 is not allowed; allowed: less than or equal to 10000"),
        ({"run__workers": 10**9}, "run.workers: 1000000000 is not allowed; allowed: less than or equal to 1024"),
        ({"run__timeout_seconds": 10**30}, "run.timeout_seconds: a number of 100 bits is not allowed; allowed:"),
        ({"run__timeout_seconds": 10**10}, "run.timeout_seconds: 10000000000 is not allowed; allowed: less than or"),
        ({"run__rendezvous": "node0:99999"},
         "run.rendezvous: 'node0:99999' is not allowed; allowed: host:port, with a port from 0 to 65535"),
        ({"run__rendezvous": "node0:65536"}, "run.rendezvous: 'node0:65536' is not allowed; allowed: host:port, with"),
        ({"paths__inbox": "a" * 201}, f"paths.inbox: '{'a' * 199}… (203 characters) is not allowed; allowed: a path"),
        ({"paths__inbox": "/".join(["a"] * 501)}, "… (1,003 characters) is not allowed; allowed: at most 1000 char"),
        ({"data__url": "file:///" + "a" * 5000}, "… (5,010 characters) is not allowed; allowed: at most 2000"),
    ],
)  # fmt: skip
def test_values_that_would_fail_later_are_refused_at_once(
    raw: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    """Values that are too large for 32 bits or for the system are refused with key, value and what is allowed."""
    with pytest.raises(UserError) as refusal:
        params.parse(change(raw, **changes))
    assert any(sentence in line for line in str(refusal.value).splitlines()), refusal.value


def test_an_address_with_too_long_a_name_is_no_file(tmp_path: Path) -> None:
    """A file name that is too long for the system is refused like a missing file."""
    with pytest.raises(
        UserError, match=r"data\.url: 'file:///a+': there is no such file; allowed: an existing archive"
    ):
        fetch.obtain_archive(f"file:///{'a' * 300}", "0" * 64, tmp_path)


@pytest.mark.parametrize("port", ["0", "1", "80", "29400", "59999", "65535"])
def test_every_port_there_is_can_be_met_at(raw: dict[str, Any], port: str) -> None:
    """A port has 16 bits."""
    assert params.parse(change(raw, run__rendezvous=f"node0:{port}")).run.rendezvous == f"node0:{port}"


@pytest.mark.parametrize(
    "inbox",
    [
        "data", "data/images", "data/images/mine", "models", "pipeline", "runs/x", "/home/me/project/data/images",
        "/home/me/photos/../project/pipeline", "/home/me/project/", "/home/me",
    ],
)  # fmt: skip
def test_an_inbox_holds_nothing_of_the_project(raw: dict[str, Any], inbox: str) -> None:
    """Refused: a folder inside the project's own, one that holds them, and one that holds the project itself."""
    [sentence] = validity.faults(params.parse(on_cpu(raw, paths__inbox=inbox)), HERE)
    assert sentence.startswith(f"paths.inbox: {inbox!r}: ")


@pytest.mark.parametrize("inbox", ["data/inbox", "data/photos", "mine", "/home/me/project/data/photos", "/home/photos"])
def test_an_inbox_of_its_own_is_allowed(raw: dict[str, Any], inbox: str) -> None:
    """Inside the project, or anywhere else."""
    assert validity.faults(params.parse(on_cpu(raw, paths__inbox=inbox)), HERE) == []


def test_far_more_processes_than_cores_are_refused(raw: dict[str, Any]) -> None:
    """They would only wait for each other."""
    crowded = on_cpu(raw, run__processes=20, train__parallel="ddp", train__batch_size=20)
    assert validity.faults(params.parse(crowded), HERE) == [
        "run.processes: 20 on a node are more than 8 for each core here (2); allowed: 1 to 16; more than 2 are not "
        "faster"
    ]


def test_the_projects_own_files_are_known() -> None:
    """validity.TAKEN has every path of the params, and every name that Git tracks at the top, except data."""
    paths = {getattr(params.Paths, name) for name in params.Paths.__class_vars__}
    assert paths | {"data/corrections.csv"} <= validity.TAKEN
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    tops = {name.split("/")[0] for name in listed.splitlines()}
    if not tops:
        pytest.skip("this copy of the project is in no Git repository")
    assert {top for top in tops if not top.startswith(".")} - {"data"} <= validity.TAKEN


# ---- whatever anybody can write ----

ODD = (
    "", "~", "null", "yes", ".nan", "-.inf", "1e999", "-1e308", "1_000", "0x" + "f" * 40, "9" * 60, "-0", "0o17",
    "2024-05-01", "2024-05-01T10:00:00Z", "2024-99-99", "12:30:45", "!!binary aGVsbG8=", "!!binary é", "!!int a",
    "!!float x", "!!bool x", "!!timestamp x", "!!set {a, b}", "!!omap [a: 1]", "!!omap 1", "!!pairs [a: 1]",
    "!!python/none x", "!x y", "*a", "&a 1", "&a [*a]", "&a {b: *a}", "<<", "'", '"', '"\\ud800"', '"\\0"', '"\\x7f"',
    '"a\\nb"', "a" * 300, "é", "\u2028", "\ufeff", "{", "[", "]", "[]", "{}", "[1, [2, {a: 3}]]", "? [a, b]",
    "{? [a]: 1}", "{[a]: 1}", "{<<: {b: 1}}", "{<<: 1}", "%", "@", "`", "|", ">-", "---", "...", "- 1", "\t", "a: b: c",
)  # fmt: skip
KEYS = (
    "train",
    "paths",
    "run",
    "lr",
    "inbox",
    "<<",
    "1",
    "~",
    "? [a]",
    "2024-05-01",
    "!!binary aGk=",
    "é",
    "",
    '"\\0"',
)
scalars = st.sampled_from(ODD) | st.text(max_size=6) | st.integers().map(str) | st.floats().map(repr)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(st.sampled_from(KEYS), inner), max_size=3).map(
            lambda items: f"{{{', '.join(f'{key}: {value}' for key, value in items)}}}"
        )
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd") / "params.yaml"


@hypothesis.given(st.lists(st.tuples(st.sampled_from(KEYS), documents), max_size=3) | documents)
@hypothesis.settings(max_examples=150)
def test_any_document_gives_params_or_a_refusal(file: Path, drawn: list[tuple[str, str]] | str) -> None:
    """Any YAML gives params or a UserError with one line per fault."""
    text = drawn if isinstance(drawn, str) else "\n".join(f"{key}: {value}" for key, value in drawn)
    assert all(line.isprintable() for line in said(file, text).split("\n") if line)


SETTINGS = [(name, key) for name, section in Params.model_fields.items() for key in section.annotation.model_fields]  # type: ignore[union-attr]


@hypothesis.given(st.sampled_from(SETTINGS), documents)
@hypothesis.settings(max_examples=150)
def test_any_value_of_any_setting_gives_params_or_a_refusal(file: Path, setting: tuple[str, str], text: str) -> None:
    """One value of a valid file is replaced: the result is refused, or validity.faults can check it."""
    section, key = setting
    lines = (PROJECT / "params.yaml").read_text().splitlines()
    start = lines.index(next(line for line in lines if line.startswith(f"{section}:")))
    row = next(row for row in range(start, len(lines)) if lines[row].startswith(f"  {key}:"))
    end = next((row for row in range(row + 1, len(lines)) if not lines[row].startswith(("    ", "  -"))), len(lines))
    changed = "\n".join([*lines[:row], f"  {key}: {text}", *lines[end:]])
    file.write_bytes(changed.encode("utf-8", "surrogatepass"))
    try:
        config = params.load(file)
    except UserError:
        return
    assert all(isinstance(sentence, str) for sentence in validity.faults(config, HERE))
