"""The program: `perennial <command>`, which is the same as `python -m pipeline <command>`.

It prints what the command does, before the imports of the command, which take a second or more. Then it imports the
module of the command and runs it. An error becomes one line on stderr and an exit status (base/errors.py).
"""

# ruff: noqa: E402  (Ctrl-C is handled before the other imports)

import os
import signal


def end_at_once(*_: object) -> None:
    """End this process with one line and status 130: Ctrl-C, before the command has begun.

    An exception instead could be printed as a traceback, or become another one in a library's import.
    """
    try:
        os.write(2, b"perennial: interrupted; nothing was begun\n")
    finally:
        os._exit(130)


if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not so under nohup
    signal.signal(signal.SIGINT, end_at_once)

import argparse
import gc
import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path

from pipeline.base import linux
from pipeline.base.errors import Fault, UserError, check_folder, exit_status
from pipeline.command_line import (
    BELOW,
    COMMANDS,
    COMPLETION,
    HELP,
    NOWHERE,
    PROGRAM,
    STAGES,
    VERBOSE,
    VERSION,
    Command,
    completion,
    listing,
    parse,
    unknown,
    version,
)
from pipeline.running import terminal

LAUNCHED = dict.fromkeys(("features", "train", "evaluate"), "pipeline.running.launch")


def module_of(arguments: argparse.Namespace) -> str:
    """The module of a command: of a stage it has `run(config)`, else `main(arguments)`, which returns a status."""
    name: str = arguments.command
    if name == "rank":
        return f"pipeline.{'planning' if arguments.stage == 'trial' else 'stages'}.{arguments.stage}"
    if name in LAUNCHED:
        return LAUNCHED[name]
    return f"pipeline.{'stages' if COMMANDS[name].group == STAGES else 'commands'}.{name.replace('-', '_')}"


def work_of(arguments: argparse.Namespace) -> Callable[[], int]:
    """What a command does after the import of its module. It returns the exit status."""
    module = importlib.import_module(module_of(arguments))
    if module.__package__ != "pipeline.stages":
        return partial(module.main, arguments)
    from pipeline.running import frame  # imports pydantic: `--help` answers without it

    return partial(frame.run_stage, module.__name__.rpartition(".")[2], module.run)


def set_up_interpreter() -> None:
    """Set up the interpreter for a command, before the command imports its libraries."""
    # Importing torch creates a million objects that stay. By default Python searches them for garbage again and again,
    # which takes a sixth of a start [measured]. See also the end of `frame.run_stage`.
    gc.set_threshold(100_000, 50, 50)
    # torchrun starts Python with -u. Then print writes a line and its end in two steps, and the lines of several
    # processes mix. Every line is one write.
    if isinstance(sys.stderr, TextIOWrapper):
        sys.stderr.reconfigure(line_buffering=True, write_through=False)


def announce(name: str, command: Command, answers: bool) -> None:
    """Print what a command does. `answers`: not on stdout, which programs read."""
    descriptor = 2 if answers else 1
    if command.group and (descriptor == 1 or os.isatty(descriptor)):
        with suppress(OSError):  # not with print: what it cannot write, it would try to write again at the end
            os.write(descriptor, f"{terminal.shown(f'{name}: {command.help}', descriptor)}\n".encode())


def tell_project(below: str) -> None:
    """Print to a person who stands in a folder below the project's where the project is."""
    if below not in ("", NOWHERE) and sys.stderr and sys.stderr.isatty():
        print(f"{PROGRAM}: the project is {Path.cwd()}; names of files are from there", file=sys.stderr)


def refuse_nowhere() -> int:
    """Raise UserError: a command that needs a project has none."""
    remedy = "cd /path/to/the/project, or make one: perennial new FOLDER; predict --model PATH needs none"
    raise UserError(Fault("project", f"none in {Path.cwd()} or above", "missing", remedy=remedy))


def print_text(text: str) -> int:
    """Print a text; 0."""
    print(text)
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Run the command that the words name. Returns its exit status: 2 if there is no such command, or arguments."""
    below = os.environ.pop(BELOW, "")  # the processes that it starts stand in the project's folder
    # torch.distributed.launch passes the local rank as a word, too.
    given = [*(sys.argv[1:] if words is None else words)]
    name, *rest = [word for word in given if not word.startswith("--local-rank=")] or ["--help"]
    if name == "help":
        name, *rest = [*rest, "--help"]
    for descriptor, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:  # closed: no other file gets its number, here and in the processes that this one starts
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            os.set_inheritable(descriptor, True)
    if sys.stderr is None:  # closed: nobody wants its lines, and they do not belong into the answers
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):  # as stderr is: no letter that the encoding lacks ends a command
        sys.stdout.reconfigure(errors="backslashreplace")
    terminal.show_lines()
    answers = name not in COMMANDS or COMMANDS[name].answers or not HELP.isdisjoint(rest)
    if answers and words is None:  # this process is the program; who reads its output may end first, as head does
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    texts = dict.fromkeys(HELP, listing) | {VERSION: version, VERBOSE: lambda: listing(verbose=True)}
    texts[COMPLETION] = lambda: completion([name, *rest])
    if name in texts:
        return exit_status(PROGRAM, lambda: print_text(texts[name]()))
    if name not in COMMANDS:
        print(unknown(name), file=sys.stderr)
        return 2
    arguments = parse(name, rest, below)
    needs_project = not (COMMANDS[name].anywhere or getattr(arguments, "model", None))
    if needs_project and below == NOWHERE:
        return exit_status(terminal.red(name), refuse_nowhere)
    parent = os.environ.pop(linux.PARENT, "")  # the processes that it starts have another one
    if parent or name == "rank" or COMMANDS[name].group == STAGES:
        linux.die_with(int(parent or os.getppid()))
    set_up_interpreter()
    tell_project(below)
    announce(name, COMMANDS[name], COMMANDS[name].answers or getattr(arguments, "json", False))

    def run() -> int:
        if needs_project:
            check_folder("project", Path.cwd())
        # The imports, too, can fail for lack of memory (ulimit -v), or be interrupted.
        work = work_of(arguments)
        if signal.getsignal(signal.SIGINT) is end_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if name == "rank":
            from pipeline.running import group  # imports torch, as the work of each process does

            return group.run_process(work)
        return work()

    return exit_status(terminal.red(arguments.stage if name == "rank" else name), run)


if __name__ == "__main__":
    sys.exit(main())
