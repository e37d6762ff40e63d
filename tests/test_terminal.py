"""What a person sees on a terminal: the stages without DVC's own lines, bars, and the completion of words."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.harness import workspace
from pipeline.__main__ import main
from pipeline.command_line import COMMANDS, COMPLETION
from pipeline.versioning import killed_dvc, quiet
from tests.conftest import PROJECT
from tests.helpers.terminals import on_terminal
from tests.helpers.trainings import small_world

QUIET = [sys.executable, "-m", "pipeline.versioning.quiet", "dvc", "repro"]
PIPELINE = """
stages:
  one:
    cmd: exec {python} stage.py one
    outs: [one]
  two:
    cmd: exec {python} stage.py two
    deps: [one]
    params: [end]
    outs: [two]
"""
# A stage that says whether it is on a terminal, and what its DVC's command line is. It ends as params.yaml says.
STAGE = """
import os, signal, sys
import psutil
name = sys.argv[1]
print(f"{name}: begins; {os.isatty(1)}, {os.isatty(2)}", flush=True)
open(name, "w").write(" ".join(psutil.Process().parent().cmdline()))
end = int(open("params.yaml").read().split()[1]) if name == "two" else 0
if end == 9:
    os.kill(os.getpid(), signal.SIGKILL)
if end:
    sys.exit(f"{name}: end: {end}; allowed: 0")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of DVC with two stages."""
    (tmp_path / "pipeline").symlink_to(PROJECT / "pipeline")
    (tmp_path / "dvc.yaml").write_text(PIPELINE.format(python=sys.executable))
    (tmp_path / "stage.py").write_text(STAGE)
    (tmp_path / "params.yaml").write_text("end: 0\n")
    assert workspace.call(tmp_path, sys.executable, "-m", "dvc", "init", "--quiet", "--no-scm").returncode == 0
    return tmp_path


def repro(project: Path, *arguments: str) -> tuple[int, list[str], list[str]]:
    """The exit status, and the lines of stdout and stderr."""
    done = workspace.call(project, *QUIET, *arguments)
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def test_only_the_stages_speak(project: Path) -> None:
    """On a terminal, which the stages have as their own. What does not run is named in one line.

    4 seconds: DVC starts three times.
    """
    status, stdout = on_terminal(QUIET, project, env=workspace.environment(project))
    assert status == 0
    assert stdout.replace("\r", "").splitlines() == ["one: begins; True, True", "two: begins; True, True"]
    assert killed_dvc.is_dvc((project / "two").read_text().split())
    assert repro(project) == (0, ["repro: unchanged: one, two"], [])
    (project / "two").unlink()
    assert repro(project) == (0, ["repro: unchanged: one; taken from DVC's cache: two"], [])


def test_a_stage_that_refuses_has_the_last_line(project: Path) -> None:
    """DVC's own line about it is not shown; its exit status is. A stage that a signal ended has said nothing."""
    (project / "params.yaml").write_text("end: 7\n")
    begins = ["one: begins; False, False", "two: begins; False, False"]
    assert repro(project) == (255, begins, ["two: end: 7; allowed: 0"])
    (project / "params.yaml").write_text("end: 9\n")
    status, stdout, (line,) = repro(project)
    assert (status, stdout) == (255, ["repro: unchanged: one", begins[1]])
    assert line.startswith("repro: two: ended by SIGKILL; ")


def test_the_time_of_a_stage_that_failed_is_not_noted(project: Path) -> None:
    """With --keep-going. DVC also warns of an empty file: once, and its writer is noted. The last stage need not be."""
    with (project / "dvc.yaml").open("a") as stages:
        stages.write("  writer: {cmd: true > empty, outs: [empty]}\n")
        stages.write("  reader: {cmd: echo read > read, deps: [empty], outs: [read]}\n")
    (project / "params.yaml").write_text("end: 7\n")
    _, _, stderr = repro(project, "--keep-going")
    assert "two: end: 7; allowed: 0" in stderr
    assert len([line for line in stderr if line.startswith("WARNING:") and "empty" in line]) == 1
    assert json.loads((project / quiet.SECONDS).read_bytes()).keys() - {"reader"} == {"one", "writer"}


@pytest.mark.parametrize(("break_it", "word"), [("stages: 1\n", "dvc.yaml"), ("", "nothing")])
def test_an_error_of_dvc_itself_is_shown(project: Path, break_it: str, word: str) -> None:
    """With a last line that says how to go on."""
    if break_it:
        (project / "dvc.yaml").write_text(break_it)
    status, stdout, stderr = repro(project, *([] if break_it else ["one", "nothing"]))
    assert status == 255
    assert stdout == []
    assert word in "\n".join(stderr[:-1])
    assert stderr[-1].startswith("repro: dvc repro: exit status 255; ")


def test_the_bar_of_train_names_its_epoch(tmp_path: Path) -> None:
    """On a terminal. 6 seconds: a training of two epochs."""
    folder = small_world(tmp_path)
    status, stdout = on_terminal([sys.executable, "-m", "pipeline", "train"], folder)
    assert status == 0, stdout
    epochs = re.findall(r"\rtrain: epoch (\d)/2: ", stdout)
    assert epochs == sorted(epochs)
    assert set(epochs) == {"1", "2"}


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The script with which a shell completes words."""
    assert main([COMPLETION, shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sw"], {"sweep"}), ([""], {name for name, command in COMMANDS.items() if command.group}),
        (["sweep", "--ap"], {"--apply"}), (["repro", "--force", "ev"], {"evaluate"}),
        (["verify", "--stage", "pre"], {"prepare"}), (["start", "qu"], {"quick"}),
        (["predict", "--device", ""], {"cpu", "cuda"}), (["predict", "one.png", "READ"], {"README.md", "README.zh.md"}),
    ],
)  # fmt: skip
def test_bash_completes(words: Sequence[str], expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Commands, options, stages, presets, and paths: what a real bash offers for the last word."""
    text = script("bash", capsys)
    ask = """
        COMP_WORDS=(perennial "$@"); COMP_CWORD=$#
        $(complete -p perennial | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", text + ask, "bash", *words], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.splitlines()) == expected, done.stderr


def test_zsh_accepts_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    """Its syntax, where zsh is installed; everywhere it has every command."""
    text = script("zsh", capsys)
    assert all(f" {name}) _arguments " in text for name, command in COMMANDS.items() if command.group)
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed: its syntax is not checked")
    subprocess.run(["zsh", "-n"], input=text, text=True, check=True)
