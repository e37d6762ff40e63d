"""What a person sees on a terminal: the bar of a training, and the completion of words."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.command_line import COMMANDS, COMPLETION
from tests.conftest import PROJECT
from tests.helpers.terminals import on_terminal
from tests.helpers.trainings import small_world


def test_the_bar_of_train_names_its_epoch(tmp_path: Path) -> None:
    """On a terminal. 6 seconds: a training of two epochs."""
    folder = small_world(tmp_path)
    status, stdout = on_terminal([sys.executable, "-m", "pipeline", "train"], folder)
    assert status == 0, stdout
    epochs = re.findall(r"\rtrain: epoch (\d)/2: ", stdout)
    assert epochs == sorted(epochs)
    assert set(epochs) == {"1", "2"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sw"], {"sweep"}), ([""], {name for name, command in COMMANDS.items() if command.group}),
        (["sweep", "--jo"], {"--jobs"}), (["repro", "--force", "ev"], {"evaluate"}),
        (["verify", "--stage", "pre"], {"prepare"}), (["start", "qu"], {"quick"}),
        (["predict", "--device", ""], {"cpu", "cuda"}), (["predict", "one.png", "READ"], {"README.md", "README.zh.md"}),
    ],
)  # fmt: skip
def test_bash_completes(words: Sequence[str], expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Commands, options, stages, presets, and paths: what a real bash offers for the last word."""
    assert main([COMPLETION, "bash"]) == 0
    ask = """
        COMP_WORDS=(perennial "$@"); COMP_CWORD=$#
        $(complete -p perennial | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    command = ["bash", "-c", capsys.readouterr().out + ask, "bash", *words]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) == expected, done.stderr


def test_zsh_accepts_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    """It has every command; where zsh is installed, its syntax is checked."""
    assert main([COMPLETION, "zsh"]) == 0
    text = capsys.readouterr().out
    # A command with subcommands has a function of its own.
    begins = (rf" {name}\) _(arguments|shtab_perennial_\w+) " for name, command in COMMANDS.items() if command.group)
    assert all(re.search(begin, text) for begin in begins)
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n"], input=text, text=True, check=True)
