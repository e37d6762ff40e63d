"""What a person sees on a terminal: lines that fit, styles, escapes, the bar of a training, and completed words."""

import os
import re
import select
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.base.text import in_words, visible
from pipeline.command_line import COMMANDS, COMPLETION
from pipeline.running import terminal
from tests.conftest import PROJECT
from tests.helpers.terminals import on_terminal
from tests.helpers.trainings import small_world

PROGRAM = [sys.executable, "-m", "pipeline"]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("split: a photo", ["split: a photo"]),
        ("split: a photo of a rose, or two", ["split: a photo of a", "       rose, or two"]),
        ("note     a photo of a rose", ["note     a photo of", "         a rose"]),
        ("try: at  a photo of it", ["try: at  a photo of", "         it"]),
        ("\x1b[31mtry\x1b[0m: a photo, roses", ["\x1b[31mtry\x1b[0m: a photo, roses"]),
        ("玫瑰玫瑰玫瑰 and roses", ["玫瑰玫瑰玫瑰 and", "roses"]),
        ("a/path/that/is/longer/than/the/line", ["a/path/that/is/longer/than/the/line"]),
    ],
)
def test_a_line_is_broken_at_blanks(line: str, parts: list[str]) -> None:
    """Into parts of 20 columns; later parts begin below the text. A style has no column, a Chinese letter has two."""
    assert terminal.broken(line, 20).split("\n") == parts


def test_styles_need_a_terminal_that_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a pipe, not with NO_COLOR, and not where TERM is dumb or missing."""
    (reader, pipe), (ours, theirs) = os.pipe(), os.openpty()
    monkeypatch.delenv("NO_COLOR", raising=False)
    for term, no_color, is_styled in (("xterm", "", True), ("dumb", "", False), ("", "", False), ("xterm", "1", False)):
        monkeypatch.setenv("TERM", term or "dumb")
        monkeypatch.setenv("NO_COLOR", no_color)
        if not term:
            monkeypatch.delenv("TERM")
        assert ("\x1b" in terminal.styled("0.9", terminal.BOLD, theirs)) == is_styled
        assert terminal.styled("0.9", terminal.BOLD, pipe) == "0.9"
        shown = terminal.shown("train: note: few images", theirs)
        assert shown == f"train: {terminal.styled('note', terminal.YELLOW, theirs)}: few images"
    for descriptor in (reader, pipe, ours, theirs):
        os.close(descriptor)


def test_a_terminal_shows_whole_words_and_where_a_refusal_begins(tmp_path: Path) -> None:
    """Announced, listed and refused: no line is wider than the terminal. A pipe gets each line as it is."""
    environ = {**os.environ, "TERM": "xterm", "NO_COLOR": "", "PYTHONPATH": str(PROJECT)}
    for words in ([], ["sweep", "nowhere"]):
        _, stdout = on_terminal([*PROGRAM, *words], tmp_path, columns=60, env=environ)
        assert max(len(terminal.STYLE.sub("", line)) for line in stdout.splitlines()) <= 60, stdout
    assert "\x1b[1;31msweep\x1b[0m: " in stdout
    done = subprocess.run(
        [*PROGRAM, "sweep", "nowhere"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert [line.partition(":")[0] for line in (done.stdout + done.stderr).splitlines()] == ["sweep", "sweep"]


def test_a_bar_and_a_question_are_written_at_once() -> None:
    """A stream of a terminal keeps back only the begin of a line that nobody has flushed."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, 19))
    stream = terminal.Lines(os.fdopen(theirs, "wb", buffering=0, closefd=False), "utf-8", line_buffering=True)
    texts = (
        ("\r10 %", True, "\r10 %"), ("\r90 %", True, "\r90 %"), ("\n", False, "\r\n"),
        ('{"path": "my roses"}\n', False, '{"path": "my roses"}\r\n'),
        ("Which one? a: apex", False, ""), (", b: best", True, "Which one? a: apex,\r\nb: best"),
    )  # fmt: skip
    for text, is_flushed, expected in texts:
        stream.write(text)
        if is_flushed:
            stream.flush()
        seen = ""  # the system passes it on in parts
        while len(seen) < len(expected) and select.select([ours], [], [], 60)[0]:
            seen += os.read(ours, 100).decode()
        assert seen == expected
    for descriptor in (ours, theirs):
        os.close(descriptor)


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rose é 玫瑰 🌷", "rose é 玫瑰 🌷"),
        ("a\n\t\x1b[31m\x7f", r"a\n\t\x1b[31m\x7f"),
        ("a\u202eb\u2028\ufeff\U000e0001", r"a\u202eb\u2028\ufeff\U000e0001"),
        ("\udce9", r"\udce9"),  # a byte of a file's name that is no UTF-8
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("🧑\u200d🌾\u202e", "🧑\u200d🌾" + r"\u202e"),
        ("a\u00a0b\u202fc", "a\u00a0b\u202fc"),  # spaces, as macOS has them in names
        ("\U0001fffe", "\U0001fffe"),  # a letter of no version of Unicode
    ],
)
def test_only_what_acts_is_escaped(text: str, expected: str) -> None:
    """A letter stays as it is, also one that a later Unicode defines, and so does a joiner inside a word."""
    assert visible(text) == expected


def test_a_long_list_is_cut() -> None:
    """Twenty names are all there; of more, the number is."""
    names = [f"c{number}" for number in range(25)]
    assert in_words(names[:20]) == ", ".join(names[:20])
    assert in_words(names) == f"{', '.join(names[:20])} and 5 more"
    assert in_words([]) == ""
