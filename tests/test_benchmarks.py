"""Each benchmark runs with its tiny preset; the GPU command can be resumed; a table has them."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

from benchmarks.__main__ import commands
from benchmarks.__main__ import main as benchmark
from benchmarks.harness import bound, measuring, workspace
from benchmarks.harness.measuring import Report
from benchmarks.speed import gpu, peers, ways
from pipeline.base import files
from tests.conftest import PROJECT
from tests.documents import reports
from tests.gpu.report import Report as GpuTests
from tests.helpers.projects import call, commit
from tests.helpers.refusals import refuses
from tests.helpers.wheels import wheel

# `devices` is `ways` for GPUs; `gpu` and `peers` run in the test of a machine that has little.
TRIED = sorted(commands().keys() - {"devices", "gpu", "peers"})


def table_of(name: str, report: dict[str, Any]) -> str:
    """The table of a report in the documents, which has one size of images."""
    of_table = {row.replace(" 32", " 224"): value for row, value in report["rows"].items()}
    return reports.TABLES[name](reports.with_shares(report | {"rows": report["rows"] | of_table}))


NIGHTLY = pytest.mark.nightly("half a minute each; make test has a benchmark, which shares their code")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[NIGHTLY] * (name != "planning")) for name in TRIED])
def test_a_benchmark_runs_and_reports(name: str, tmp_path: Path) -> None:
    """A table of the documents can be made of the JSON, which names machine, versions, commit and preset."""
    command = [sys.executable, "-m", "benchmarks", name, "--tiny", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / f"{name}_cpu.json").read_text())
    assert all(row in done.stdout for row in [*report["rows"], *report["left_out"]])
    assert name not in reports.TABLES or table_of(name, report).count("\n") > 1
    assert report["conditions"]["preset"] == "tiny"
    assert {"cpu", "cores", "gpus", "versions", "commit"} <= report["conditions"].keys()
    without_photos = ("planning", "arithmetic", "exact", "profile", "scale", "state", "steps")
    assert name in without_photos or report["conditions"]["photos"]


def test_no_device_is_no_report(tmp_path: Path) -> None:
    """A machine that can run no case is refused, after a line with the reason for each case."""
    cases = {"no such way": (ways.Way("elastic"), 64)}
    with refuses(("--device", "machine")):
        ways.measure("nothing", options_of(tmp_path), cases)
    assert list(json.loads((tmp_path / "nothing_cpu.json").read_text())["left_out"]) == ["no such way"]


def test_ways_that_are_cut_go_on_with_the_next_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way is trained as often as its preset says, and an epoch counts once."""
    cases = {name: (ways.Way("single"), 1) for name in "ab"}
    seconds = iter([1.0, 2.0, 3.0, None, 4.0])

    def run(*_: object) -> list[float]:
        if (second := next(seconds)) is None:
            raise KeyboardInterrupt
        return [second]

    monkeypatch.setattr(ways, "run", run)
    monkeypatch.setattr(workspace, "prepare", lambda *_: None)
    monkeypatch.setitem(ways.PRESETS, "tiny", replace(ways.PRESETS["tiny"], turns=2))
    with pytest.raises(KeyboardInterrupt):
        ways.measure("ways", options_of(tmp_path), cases)
    rows = ways.measure("ways", options_of(tmp_path, resume=True), cases).rows
    assert {name: (row["turns"], row["epochs"], row["epoch_s"]) for name, row in rows.items()} == {
        "a": (2, [1.0, 3.0], 2.0), "b": (2, [2.0, 4.0], 3.0),
    }  # fmt: skip


@pytest.mark.parametrize("part", gpu.FIRST)
def test_the_gpu_command_stops_without_equal_bits(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No later part runs after tests that cannot be collected, or that fail. The last line says how to go on.

    The named parts run in the order in which they are named. Python keeps bytecode. Where the time is over, a part is
    named that the next start resumes.
    """
    ran, resumed = [], set()
    command = gpu.command

    def replaced(name: str, options: argparse.Namespace) -> list[str]:
        ran.append(name)
        resumed.update([name] * ("--resume" in command(name, options)))
        return ["false"] if name == part else ["sh", "-c", 'test -z "$PYTHONDONTWRITEBYTECODE"']

    def main(*options: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path), *options])
        ran.clear()
        return gpu.main(), ran, capsys.readouterr().out

    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(gpu, "missing", lambda _: [])
    monkeypatch.setattr(gpu, "command", replaced)
    status, _, said = main()
    rest = said.split("--only ")[1].split()
    assert (status, tuple(ran), tuple(rest)) == (1, gpu.PARTS[: gpu.PARTS.index(part) + 1], gpu.PARTS[2:])
    assert main("--only", *reversed(rest))[:2] == (0, rest[::-1])
    assert resumed == {*gpu.BENCHMARKS}
    status, _, said = main("--only", "steps", "--minutes", "0")
    assert (status, ran, "stopped in steps" in said) == (75, [], True)


def test_figures_are_computed_from_seconds() -> None:
    """Other programs are compared in the same precision, `split` included."""
    seconds = {"ours tf32": 4.0, "ours fp16": 2.0, "tutorial tf32": 5.0, "timm fp16": 3.0, "torchvision fp16": 2.0}
    rows = {"split, once": {"seconds": 1.5}, "prepare, once": {"seconds": 1.0}} | {
        name: {"epoch_s": value} for name, value in seconds.items()
    }
    assert peers.compared(rows) == {
        "once_s": 2.5,
        "times_as_long": {"tutorial tf32": 1.25, "timm fp16": 1.5, "torchvision fp16": 1.0},
        "less_from_epoch": {"tutorial tf32": 3, "timm fp16": 3, "torchvision fp16": None},
    }
    assert [measuring.less_from(once, 1.0, 3.0) for once in (0.0, 1.9, 2.0, 2.1)] == [1, 1, 2, 2]


def test_the_packages_of_a_bare_machine_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The locked ones by pip, Apex from its wheel, libraries without symbols. What is too large or lacks is refused."""
    own = wheel(tmp_path / "index", "some_package")
    lock = tmp_path / "requirements/lock.txt"
    lock.parent.mkdir()
    lock.write_text(f"other==2\nsome-package==1 \\\n    --hash=sha256:{hashlib.sha256(own.read_bytes()).hexdigest()}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "CARRIED", ("some_package",))
    (tmp_path / "strip").write_text('#!/bin/sh\nprintf stripped > "$2"\n')
    (tmp_path / "strip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(own.parent))
    extensions = [f"{name}.cpython-312-x86_64-linux-gnu.so" for name in gpu.APEX]
    apex = wheel(tmp_path / "apex", "apex", *extensions)
    folder = tmp_path / "packages"
    assert gpu.write_packages(folder, apex) == ""
    assert {"some_package", "apex", *extensions} <= {path.name for path in folder.iterdir()}
    assert [(folder / name).read_text() for name in extensions] == ["stripped"] * 3
    monkeypatch.setattr(gpu, "MOST_BYTES", 10)
    assert "MiB" in gpu.write_packages(tmp_path / "large", None)
    assert "syncbn" in gpu.write_packages(tmp_path / "none", wheel(tmp_path / "other", "apex", *extensions[:2]))
    assert "no such wheel" in gpu.write_packages(tmp_path / "none", tmp_path / "nothing.whl")
    monkeypatch.setattr(gpu, "CARRIED", ("some_package", "unlocked"))
    assert "unlocked" in gpu.write_packages(tmp_path / "none", None)
    assert not (tmp_path / "none").exists()


def bare_environment(folder: Path) -> tuple[Path, Path]:
    """The Python of an environment with gpu.EXPECTED and what they require, and a folder with gpu.CARRIED alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    names, links = [*gpu.EXPECTED, "pillow"], folder / f"lib/python3.{sys.version_info.minor}/site-packages"
    present: set[str] = set()
    while names:
        name = names.pop()
        try:
            package = distribution(name)
        except PackageNotFoundError:  # for another system or another Python
            continue
        if package.name in present:
            continue
        present.add(package.name)
        requirements = map(Requirement, package.requires or [])
        names += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
        for top in {path.parts[0] for path in package.files or []} - {"..", "__pycache__"}:
            if not (links / top).exists():
                (links / top).symlink_to(str(package.locate_file(top)))
    packages = folder / "packages"
    packages.mkdir()
    for top in {name.partition(".")[0] for name in gpu.CARRIED}:
        (packages / top).symlink_to(str(distribution("pydantic").locate_file(top)))
    package = distribution("pydantic")  # it asks for its own version
    info = next(path.parts[0] for path in package.files or [] if path.parts[0].endswith(".dist-info"))
    (packages / info).symlink_to(str(package.locate_file(info)))
    return folder / "bin/python", packages


@pytest.mark.nightly("twenty processes that import torch; make test has the parts and the packages of the command")
def test_the_gpu_command_runs_on_a_machine_that_has_little(tmp_path: Path) -> None:
    """With EXPECTED installed and CARRIED in a folder, a test in two ranks and a benchmark run; then others, with the
    same images.
    """
    python, packages = bare_environment(tmp_path / "bare")
    command = [str(python), "-m", "benchmarks", "gpu", "--device", "cpu", "--out", str(tmp_path / "out")]
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}

    def start(status: int, *options: str) -> str:
        call = [*command, *options]
        done = subprocess.run(call, cwd=PROJECT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def written(name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((tmp_path / f"out/{name}_cpu.json").read_text())
        return content

    refusal = start(1)
    assert all(name in refusal for name in gpu.CARRIED)
    assert not any(name in refusal for name in gpu.EXPECTED)
    start(0, "--packages", str(packages), "--only", "collect", "bits", "ceiling", "--minutes", "30")
    assert {case["outcome"] for case in written("gpu_tests")["cases"].values()} == {"passed", "skipped"}
    assert written("ceiling")["rows"]
    entries = sorted((tmp_path / "out.store").iterdir())
    assert len(entries) == len(workspace.READ)
    (tmp_path / "out/ceiling_cpu.json").unlink()
    (images,) = (tmp_path / "out.store").glob("*/data/packed/images-00000.bin")
    before = images.stat().st_mtime_ns
    start(0, "--packages", str(packages), "--only", "ceiling", "time_to_accuracy", "peers", "--minutes", "30")
    assert images.stat().st_mtime_ns == before
    assert {*entries} <= {*(tmp_path / "out.store").iterdir()}
    assert written("time_to_accuracy")["figures"]
    assert written("peers")["figures"]
    assert table_of("peers", written("peers"))


def options_of(out: Path, **changes: Any) -> argparse.Namespace:
    """The options of a tiny benchmark."""
    options = measuring.parser("Nothing.", "nothing").parse_args(["--tiny", "--out", str(out)])
    return argparse.Namespace(**{**vars(options), **changes})


def test_rows_of_a_gpu_go_on_under_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides no figure of a GPU is listed by row, and not compared. The rest is compared, as are other photos.

    Without --resume a report begins anew.
    """
    versions = {"torch": "2.11.0", "cuda": "13.0", "pillow": "13.0.0"}
    first = {**measuring.machine(), "gpus": ["NVIDIA H200"], "kernel": "4.4.0", "versions": versions, "commit": "some"}
    monkeypatch.setattr(measuring, "machine", lambda: first)
    Report("nothing", options_of(tmp_path)).add("early", {"figure": 1.0})
    other = {"kernel": "6.18.44", "cores": 3, "commit": "another", "versions": versions | {"pillow": "14"}}
    monkeypatch.setattr(measuring, "machine", lambda: first | other)
    report = Report("nothing", options_of(tmp_path, resume=True))
    assert report.missing(["early", "late"]) == ["late"]
    report.add("late", {"figure": 2.0})
    content = json.loads((tmp_path / "nothing_cpu.json").read_text())
    host = {"cpu": first["cpu"], "python": first["python"], **other, "versions": {"pillow": "14"}}
    assert content["hosts"] == {"late": host}
    assert content["conditions"]["kernel"] == "4.4.0"
    for decisive in ({"gpus": ["NVIDIA L4"]}, {"code": "other"}, {"versions": versions | {"cuda": "12.8"}}):
        monkeypatch.setattr(measuring, "machine", lambda decisive=decisive: first | decisive)
        with refuses((tmp_path / "nothing_cpu.json", "differs")):
            Report("nothing", options_of(tmp_path, resume=True))
    monkeypatch.setattr(measuring, "machine", lambda: first)
    with refuses((tmp_path / "nothing_cpu.json", "differs")):
        Report("nothing", options_of(tmp_path, resume=True), photos="others")
    assert Report("nothing", options_of(tmp_path)).missing(["early"]) == ["early"]


def test_a_figure_of_a_gpu_needs_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a repository the variable COMMIT names it. On a CPU the figure may have none.

    A report that changes is no other code than that of the commit; a module is.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("COMMIT", raising=False)
    Report("nothing", options_of(tmp_path))
    for report in (lambda: Report("nothing", options_of(tmp_path, device="cuda")), lambda: GpuTests(tmp_path, "cuda")):
        with refuses(("COMMIT", "missing")):
            report()
    monkeypatch.setenv("COMMIT", "some")
    Report("nothing", options_of(tmp_path, device="cuda"))
    monkeypatch.delenv("COMMIT")
    paths = measuring.RESULTS / "loader_cpu.json", Path("pipeline/code.py")
    for path in paths:
        files.write_text(path, "before")
    call(tmp_path, "git", "init")
    commit(tmp_path)
    head = call(tmp_path, "git", "rev-parse", "HEAD").stdout.strip()
    for path, ending in zip(paths, ("", "-dirty"), strict=True):
        path.write_text("after")
        assert measuring.commit() == head + ending


def test_a_missing_or_wrong_archive_is_refused(tmp_path: Path) -> None:
    """Before anything is measured."""
    with refuses(("--archive", "missing")):
        workspace.photos(options_of(tmp_path, archive="file:///no.tgz"), tmp_path, 1, 1)
    (tmp_path / "some.tgz").write_bytes(b"some")
    with refuses(("--sha256", "differs")):
        workspace.photos(options_of(tmp_path, archive=f"file://{tmp_path}/some.tgz", sha256="0"), tmp_path, 1, 1)


def test_a_program_is_watched_with_all_its_processes(tmp_path: Path) -> None:
    """Its memory is the sum of its processes' peaks, also if they have freed it since."""
    inner = "import time; held = b'1' * 60_000_000; del held; time.sleep(0.5)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    watch = measuring.run_watched([sys.executable, "-c", outer], tmp_path, os.environ)
    root, child = sorted(watch.processes)
    assert watch.tree(root) == [root, child]
    assert watch.processes[child].peak_mb > 60 > watch.processes[root].peak_mb
    assert watch.peak_mb() == watch.processes[child].peak_mb + watch.processes[root].peak_mb
    with pytest.raises(RuntimeError, match="ended with 3"):
        measuring.run_watched([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, os.environ)


def test_a_table_takes_no_tiny_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It measures nothing."""
    monkeypatch.setattr(reports, "PROJECT", tmp_path)
    Report("ways", options_of(tmp_path / measuring.RESULTS)).conclude()
    with pytest.raises(ValueError, match="of the tiny preset"):
        reports.made_of("ways_cpu")


def test_a_benchmark_is_known_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is listed with its first line, and no shared module; another name is an error of one line."""
    assert benchmark([]) is None
    names = {line.split()[3] for line in capsys.readouterr().out.splitlines()}
    assert names >= {"gpu", "loader", "state"}
    assert not names & {"measuring", "ours"}
    assert benchmark(["load"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n"), said.err.startswith("benchmarks: load: ")) == ("", 1, True)


def test_the_least_time_of_a_step_is_counted_from_its_operators() -> None:
    """A convolution forwards and backwards has three times its operations; a ReLU reads and writes its bytes."""
    images = torch.randn(2, 3, 8, 8)
    convolution = torch.nn.Conv2d(3, 5, 3, padding=1, bias=False)
    forwards = bound.work(lambda: convolution(images))
    once = 2.0 * 2 * 5 * 8 * 8 * 3 * 3 * 3  # a multiplication and an addition for each output and each weight
    assert forwards.operations == {torch.float32: once}
    assert forwards.bytes == 0
    images.requires_grad_()
    both = bound.work(lambda: convolution(images).sum().backward())
    assert both.operations == {torch.float32: 3 * once}
    values = torch.randn(1000)
    assert bound.work(values.relu).bytes == 2 * 4000
    assert bound.work(values.relu_).bytes == 2 * 4000
    assert bound.work(lambda: values.view(10, 100).t()).bytes == 0
    assert bound.work(lambda: torch._foreach_add_([values], 1.0)).bytes == 2 * 4000
    peak = bound.Peak(half=100.0, tf32=50.0, fp32=10.0, memory=1000.0)
    work = bound.Work({torch.float32: 100.0, torch.bfloat16: 300.0}, 2000.0)
    assert work.seconds(peak, tf32=False) == 10 + 3 + 2
    assert work.seconds(peak, tf32=True) == 2 + 3 + 2
    assert bound.facts(work, 1.0, "no such GPU", tf32=True) == {}
    assert bound.union([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4
