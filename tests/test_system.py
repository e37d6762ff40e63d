"""Errors of the system: disks, limits, memory, clocks. Each gives one line with the remedy."""

import errno
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.__main__ import main
from pipeline.base import errors, locks
from pipeline.base.errors import Fault, Stopped, UserError
from pipeline.command_line import COMMANDS
from pipeline.config import document
from pipeline.running import provenance
from pipeline.versioning import dvc_lock
from tests.conftest import PROJECT, change, read_params, write_params
from tests.helpers.terminals import on_terminal

PARAMS = [sys.executable, "-m", "pipeline", "params"]


def end_of(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The status and the one line of a command that raises `error`."""

    def work() -> int:
        raise error

    status = errors.exit_status("some", work)
    (line,) = capsys.readouterr().err.splitlines()
    return status, line


def run(folder: Path, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`, whose modules hide those of the project. `options`: of subprocess.run."""
    environ = {**os.environ, "PYTHONPATH": f"{folder}:{PROJECT}"}
    return subprocess.run(command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True, check=False, **options)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_an_error_of_the_system_is_a_line(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error gives the file's name and the system's message; without a name, the folder in which this was."""
    for path, given in ((tmp_path / "file", [str(tmp_path / "file")]), (Path.cwd(), [])):
        status, line = end_of(OSError(number, os.strerror(number), *given), capsys)
        assert status == 1
        assert all(word in line for word in ("some: ", str(path), os.strerror(number)))


def test_the_end_of_a_reader_is_no_fault_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """As of `head`: the line names no folder, and sends nobody to the disk."""
    status, line = end_of(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)), capsys)
    assert status == 1
    assert not any(word in line for word in (str(Path.cwd()), errors.UNKNOWN))


@pytest.mark.parametrize(
    ("error", "setting"),
    [
        *((error, "run.workers") for error in (
            MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), RuntimeError("can't start new thread"),
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            ImportError("libx.so: failed to map segment from shared object"),
        )),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), "train.gradient_checkpointing"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "train.gradient_checkpointing"),
    ],
)  # fmt: skip
def test_a_memory_that_is_full_is_named(error: BaseException, setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Full memory of the host or of a GPU is named, with the settings that need less."""
    status, line = end_of(error, capsys)
    assert status == 1
    assert setting in line
    assert "train.batch_size" in line


def test_other_ends_keep_their_status(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1 for a UserError, 75 for a stop, 130 for an interrupt. A bug is raised."""
    fault = Fault("key", "a  value", "value", "why\nnot", "another", "change it")
    assert end_of(UserError(fault), capsys) == (1, "some: key: a  value: why not; allowed: another; change it")
    assert end_of(Stopped("that"), capsys) == (75, "some: that")
    assert end_of(KeyboardInterrupt(), capsys)[0] == 130
    with pytest.raises(RuntimeError, match="a fault"):
        end_of(RuntimeError("a fault"), capsys)
    with pytest.raises(OSError, match="of a library"):
        end_of(OSError("of a library, without a number"), capsys)


def test_a_closed_output_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads it (`>&-`), so nothing is printed, and the status is that of the work."""
    monkeypatch.setattr(sys, "stdout", None)
    assert errors.exit_status("some", lambda: 3) == 3


def test_what_stays_is_named_though_another_error_follows(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that could not be removed is named, even if another error follows."""
    first = OSError(errno.EROFS, os.strerror(errno.EROFS), "output")
    first.add_note(".output.partial stays (Read-only file system); the next run removes it")
    second = OSError(errno.EROFS, os.strerror(errno.EROFS), "events")
    second.__context__ = first
    assert ".output.partial stays" in end_of(second, capsys)[1]


def test_an_error_of_the_system_in_a_thread_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It is printed once, even if a library raises it again in the main thread. A bug keeps its traceback."""

    def full() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "events")

    def work() -> int:
        thread = threading.Thread(target=full)
        thread.start()
        thread.join()
        full()
        return 0

    assert errors.exit_status("some", work) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("some: events: Input/output error; ")


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """What a command starts has three streams, so that no file which it opens is its output (`>&-`)."""
    begin = "import os, sys; from pipeline.__main__ import main; main(['--version']); "
    (tmp_path / "some.py").write_text(begin + "os.execv(sys.executable, ['python', 'other.py'])")
    links = "links = [os.readlink(f'/proc/self/fd/{n}') for n in range(3)]"
    (tmp_path / "other.py").write_text(f"import os\n{links}\nopen('streams', 'w').write(' '.join(links))")
    run(tmp_path, "bash", "-c", f"{sys.executable} some.py <&- >&- 2>&-")
    assert (tmp_path / "streams").read_text().split() == [os.devnull] * 3


def test_a_letter_that_the_output_lacks_is_an_escape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a locale that is not UTF-8, or of a name that is not."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    write_params(tmp_path / "params.yaml", change(read_params(), paths__inbox="/photos→"))
    done = run(tmp_path, *PARAMS, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert r'"/photos\u2192"' in done.stdout


def test_a_folder_in_which_dvc_cannot_work_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its path is no UTF-8, as of a disk from before."""
    (tmp_path / "caf\udce9").mkdir()
    monkeypatch.chdir(tmp_path / "caf\udce9")
    assert main(["plan"]) == 1
    assert "caf\\udce9" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_what_git_prints_may_be_no_utf_8() -> None:
    """A name beside a training, where Git shows names as they are; and a dvc.lock that somebody has committed."""
    Path("dvc.lock").write_bytes(b"\xff")
    who = "-c user.name=a -c user.email=a@localhost"
    for words in ("init --quiet", "config core.quotePath false", "add .", f"{who} commit --quiet -m a"):
        subprocess.run(["git", *words.split()], check=True)
    Path(os.fsdecode(b"\xe9")).touch()
    Path("dvc.lock").unlink()
    assert provenance._git("status", "--porcelain").splitlines() == [" D dvc.lock", "?? \ufffd"]
    assert dvc_lock.committed() == {}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO, errno.ENOSYS])
def test_a_file_system_without_locks_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not mistaken for a held lock, and no lock file without a lock is created."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(OSError, match=r"lock") as error, locks.hold(tmp_path / "run", "works"):
        pass
    assert error.value.filename == str(tmp_path / "run/lock")


def test_imports_without_memory_are_a_line() -> None:
    """If `ulimit -v` is too small for importing torch, the command prints one line."""
    done = run(PROJECT, "bash", "-c", f"ulimit -v 900000; exec {sys.executable} -m pipeline rank train")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "run.workers" in done.stderr


def test_ctrl_c_during_imports_ends_the_program(tmp_path: Path) -> None:
    """With one line and status 130, though a library makes another exception of KeyboardInterrupt. nohup ignores it."""
    interrupt = "os.kill(os.getpid(), signal.SIGINT); os.getpid()"
    code = f"import os, signal\ntry: {interrupt}\nexcept BaseException: raise ImportError\nos._exit(7)"
    for module in ("difflib", "pydantic"):  # of the program, of a command
        (tmp_path / module).mkdir()
        (tmp_path / module / f"{module}.py").write_text(code)
        done = run(tmp_path / module, *PARAMS)
        assert (done.returncode, done.stderr.count("\n")) == (130, 1)
    assert run(tmp_path / module, "bash", "-c", "trap '' INT; exec \"$@\"", "bash", *PARAMS).returncode == 7


def test_a_command_says_what_it_does_before_its_slow_imports(tmp_path: Path) -> None:
    """The first line stands there before torch, DVC or Pillow are looked for. `--help` needs none of them."""
    for library in ("torch", "dvc", "PIL", "numpy", "pydantic", "psutil", "ruamel"):
        (tmp_path / f"{library}.py").write_text("import os; os.write(1, b'slow imports'); os._exit(3)")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{PROJECT}"}
    for name, words in {"predict": ["photo.jpg"], "train": [], "rank": ["train"]}.items():
        _, text = on_terminal([sys.executable, "-m", "pipeline", name, *words], tmp_path, env=environ)
        first = f"{name}: {COMMANDS[name].help}\r\n" if COMMANDS[name].group else ""
        assert text.startswith(f"{first}slow"), text
    ask = "import sys\nfrom pipeline.__main__ import main\nfor name in sys.argv[1:]:\n"
    ask += "    try: main([name, '--help'])\n    except SystemExit as end: assert end.code == 0, name"
    status, text = on_terminal([sys.executable, "-c", ask, *COMMANDS], tmp_path, env=environ)
    assert status == 0, text


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        ([], 0, "repro"),
        (["--help"], 0, "repro"),
        (["help", "sweep"], 0, "--jobs"),
        (["--verbose"], 0, "continue-from"),
        (["--verbose"], 0, "features"),
        (["--print-completion", "zsh"], 0, "sweep"),
        (["rerpo"], 2, "repro"),
        (["sweep", "--job", "x"], 2, "--job"),
        (["start", "--photos", ""], 2, "--photos ''"),
        (["folds", "--recipe="], 2, "--recipe="),
    ],
)
def test_the_program_lists_its_commands_and_names_the_nearest(
    words: list[str], status: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a command it lists them; a wrong word is refused with the nearest one."""
    try:
        code = main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == status
    assert named in "".join(capsys.readouterr())


def test_the_version_is_that_of_the_citation(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, with nothing that depends on the time or the machine."""
    citation = document.read(PROJECT / "CITATION.cff")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"perennial {citation['version']}\n"


def test_a_line_is_one_write(tmp_path: Path) -> None:
    """So the lines of several processes do not mix, also under torchrun, which starts Python with -u."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps what was written at once together
    (tmp_path / "params.yaml").write_text("train: 1\nsplit: 2\n")
    with ours, theirs:
        command = [sys.executable, "-u", "-m", "pipeline", "split"]
        done = subprocess.run(command, check=False, cwd=tmp_path, stderr=theirs.fileno())
        theirs.shutdown(socket.SHUT_WR)
        messages = list(iter(lambda: ours.recv(100_000).decode(), ""))
    assert done.returncode == 1
    assert len(messages) > 1
    assert all(text.startswith("split: ") and text.find("\n") == len(text) - 1 for text in messages), messages


def test_what_this_machine_cannot_run_has_a_status_of_its_own() -> None:
    """If the command has one: `verify` does. A fault that the user can correct comes before."""

    def status(*kinds: errors.Kind, not_here: int = errors.NOT_HERE) -> int:
        def work() -> int:
            raise UserError(*(Fault("key", "value", kind, remedy="remedy") for kind in kinds))

        return errors.exit_status("some", work, not_here=not_here)

    assert status("machine") == status("failed", "machine") == 4
    assert status("differs", "machine") == status("value") == status("machine", not_here=1) == 1
