"""The commands of the program and their arguments. It imports nothing slow: `--help` answers at once."""

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.text import coverage, did_you_mean, from_below, part, positive, share

PROGRAM = "perennial"
HELP = {"-h", "--help"}
COMPLETION, VERBOSE, VERSION = "--print-completion", "--verbose", "--version"
Parser = argparse.ArgumentParser
BELOW = "PERENNIAL_BELOW"  # the variable of requirements/perennial: where a person stands, see `parse`
NOWHERE = "/"  # its value without a project
PATHS = ("IMAGE", "PATH", "FILE", "FOLDER")  # the arguments that are paths, as `--help` names them
NO_PATH = ("torchvision/", "~")  # how --photos begins with the name of a public set, and with a path from the home


@dataclass(frozen=True)
class Command:
    """A command of the program. `main(arguments)` of its module returns the exit status."""

    group: str  # of the list of commands; empty: not in the list
    help: str  # its line in the list; printed before its imports if it is in the list
    arguments: Callable[[Parser], object] = lambda parser: None  # adds its arguments to a parser
    answers: bool = False  # its stdout is read by programs: `help` goes to stderr, and only if a person sees it
    anywhere: bool = False  # it needs no project


BEGIN, RUN, ASK, KEEP = "begin", "run", "ask", "keep"
MORE, STAGES = "seldom needed", "stages, as dvc.yaml runs them"  # shown with VERBOSE


def start(parser: Parser) -> None:
    parser.add_argument("preset", nargs="?", type=str.lower, default="", help="without: all are shown")
    places = "a folder with images, read where it is, or torchvision/<name>"
    parser.add_argument("--photos", metavar="FOLDER", help=places)
    parser.add_argument(VERBOSE, action="store_true", help="show each changed setting, and the parts of the time")


def new(parser: Parser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a new or an empty folder")


def upgrade(parser: Parser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a clone of Perennial, or another project")
    parser.add_argument("revision", nargs="?", metavar="REV", help="a commit, branch or tag (default: the last commit)")


def demo(parser: Parser) -> None:
    parser.add_argument("--record", action="store_true", help="make this run the committed one (results/demo/)")


def repro(parser: Parser) -> None:
    parser.epilog = "This is dvc repro, which first repairs what a kill or a power cut left."
    parser.add_argument(VERBOSE, action="store_true", help="show what DVC prints, too")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        help="arguments of dvc repro, such as --force or train; dvc repro --help lists them",
    )


def try_(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the experiment")
    parser.add_argument("settings", nargs="+", metavar="SETTING", help="key=value, such as train.color_jitter=0.2")


def plan(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def predict(parser: Parser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("images", nargs="*", default=(), metavar="IMAGE", help="a file, folder, address, or - for stdin")
    asked.add_argument("--split", choices=("train", "val", "test"), default="", help="the project's own images of it")
    parser.add_argument(
        "--model", metavar="PATH", help="a folder with model.json, a model.safetensors or a model.onnx; then no "
        "params.yaml is read (default: the folder of params.yaml)",
    )  # fmt: skip
    parser.add_argument("--top", type=positive, metavar="N", help="print the N most likely classes")
    for option, what in ("--max-pixels", "larger images"), ("--min-side", "images with a shorter side"):
        default = f"split.{option[2:].replace('-', '_')}"
        parser.add_argument(option, type=positive, metavar="N", help=f"refuse {what} (default: {default})")
    parser.add_argument(
        "--coverage", type=coverage, default=0, metavar="C", help="the share of images of known classes that are "
        "accepted, 0.5 to 0.999; the others are none of the classes (default: evaluate.coverage of the model)",
    )  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (default: cpu)")
    what = "write pictures into a new or an empty folder: which places of an image speak for its class"
    parser.add_argument("--heatmap", metavar="FOLDER", help=what)
    parser.add_argument("--next", type=positive, default=0, metavar="N", help="say which N images to label next")
    parser.add_argument("--html", metavar="FILE", help="write a page with every image and its answer, for a browser")
    group = parser.add_mutually_exclusive_group()
    forms = {"json": "one JSON object per line, with all classes", "csv": "path,rank,class,probability,answer"}
    for form, what in forms.items():
        group.add_argument(f"--{form}", dest="form", action="store_const", const=form, default="text", help=what)


def share_(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="the page to write; its name ends with .html")
    parser.add_argument("--model", metavar="PATH", help="a model.onnx (default: that of params.yaml)")


def forget(parser: Parser) -> None:
    parser.add_argument("photos", nargs="+", metavar="PHOTO", help="an image, as data/split.csv names it")


def compare(parser: Parser) -> None:
    parser.add_argument("revisions", nargs="*", metavar="REV", help="a commit, branch, tag or experiment, or workspace")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def verify(parser: Parser) -> None:
    parser.add_argument("--stage", metavar="NAME", help="run this stage only")
    as_statement(parser)
    others = parser.add_subparsers(dest="what", title="instead of all stages")
    audit = others.add_parser("audit", help="repeat a part of the training, from states in states/ (run.keep_states)")
    audit.add_argument("share", metavar="SHARE", type=share, help="of the training, drawn at random: 0.1 is a tenth")
    audit.add_argument("--seed", metavar="N", type=int, help="draws the segments (default: a new one)")
    audit.add_argument("--part", metavar="K/N", type=part, default=(1, 1), help="a part of what is drawn")
    audit.add_argument("--processes", metavar="N", type=positive, help="of the training, with train.parallel: elastic")
    as_statement(audit)


def as_statement(parser: Parser) -> None:
    """Whether stdout has a statement of what was repeated."""
    parser.add_argument(
        "--json", action="store_true", help="for programs: if all is equal, an in-toto statement, which cosign can sign"
    )


def at_a_time(parser: Parser, what: str) -> None:
    """Where the runs of a command run, and how many at the same time."""
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help=f"{what} at the same time (default: 1)")
    where(parser)


def where(parser: Parser) -> None:
    """Where the runs of a command run."""
    what = "'slurm', with options of sbatch: each run is a job, on a file system of all nodes (default: processes here)"
    parser.add_argument("--on", default="", metavar="WHERE", help=what)


def folds(parser: Parser) -> None:
    parser.add_argument("--folds", type=int, metavar="N", help="number of folds (default: split.folds, else 5)")
    parser.add_argument("--seeds", type=int, metavar="K", help="number of seeds, from train.seed on (default: 1)")
    at_a_time(parser, "trainings")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--recipe", metavar="NAME", help="repeat results/recipes/NAME.json")
    other.add_argument(
        "--leave-out-classes", action="store_true", help="train once without each class: how many of its images are "
        "recognized as none of the classes (one training per class, no folds)",
    )  # fmt: skip


def curve(parser: Parser) -> None:
    parser.add_argument("--folds", type=int, metavar="N", default=1, help="test every image in N folds (default: 1)")
    at_a_time(parser, "trainings")


def sweep(parser: Parser) -> None:
    what = "a file of ranges (default: docs/sweep.yaml of the project)"
    parser.add_argument("file", nargs="?", metavar="FILE", help=what)
    at_a_time(parser, "trials")


def continue_from(parser: Parser) -> None:
    parser.add_argument("revision", help="a commit, branch, tag or experiment, or workspace")


def rank(parser: Parser) -> None:
    parser.add_argument("stage", choices=("features", "train", "evaluate", "trial"))
    parser.add_argument("folder", nargs="?")  # of a trial


COMMANDS = {
    "new": Command(BEGIN, "make a project for other photos, with the code of this one", new, anywhere=True),
    "start": Command(BEGIN, "choose settings for this machine and your photos, and see how long a run takes", start),
    "demo": Command(BEGIN, "run the whole pipeline on drawn flowers, in .demo/ (about 3 minutes, no GPU)", demo),
    "doctor": Command(BEGIN, "show what this machine has, and whether the settings can run here", answers=True),
    "repro": Command(RUN, "train the model and test it, as params.yaml says; only what has changed runs", repro),
    "try": Command(RUN, "run with other settings, keep the result, and compare it with the last commit", try_),
    "folds": Command(RUN, "test every image once: train on each fold, in copies of the project", folds),
    "curve": Command(RUN, "train with 12, 25, 50 and 100 % of the training images: would more photos help?", curve),
    "sweep": Command(RUN, "try settings, ranked on the validation images; the best one is tested", sweep),
    "plan": Command(ASK, "say what the next run will do, why, and how long each part took", plan, answers=True),
    "predict": Command(ASK, "name the class of each photo", predict, answers=True),
    "compare": Command(ASK, "show results side by side, with intervals, and a test of two", compare, answers=True),
    "verify": Command(ASK, "repeat the committed run, and compare every byte", verify),
    "share": Command(ASK, "write one HTML file that classifies photos in any browser, without a network", share_),
    "forget": Command(KEEP, "exclude photos and their near duplicates: no later model has seen them", forget),
    "upgrade": Command(KEEP, "merge another version of Perennial into this project", upgrade),
    "check": Command(MORE, "say whether pipeline/ is that of the release in perennial.json", answers=True),
    "params": Command(MORE, "print the params as they are used, with defaults, as JSON", answers=True),
    "continue-from": Command(MORE, "start the next training from a model that is in DVC", continue_from),
    "download": Command(STAGES, "put images into class folders: from an archive, from a folder, or drawn"),
    "split": Command(STAGES, "check every image, and assign it to train, val or test"),
    "prepare": Command(STAGES, "resize the images, and pack them into one file"),
    "weights": Command(STAGES, "get pretrained weights, if the settings name some"),
    "features": Command(STAGES, "compute what the pretrained network says of each image, if the settings ask for that"),
    "train": Command(STAGES, "train the model; the first step takes some seconds"),
    "evaluate": Command(STAGES, "measure the trained model on the test images"),
    "export": Command(STAGES, "write the model as ONNX, and compare its answers on the test images"),
    "card": Command(STAGES, "write the model card for the Hugging Face Hub"),
    "report": Command(STAGES, "write a page with the figures, the curves, the mistakes and the data"),
    "rank": Command("", "one process of features, train, evaluate or a trial; the launcher starts it", rank),
}


def listing(verbose: bool = False) -> str:
    """The commands in their groups, with a line each. `verbose`: the stages and what is seldom needed, too."""
    width = max(map(len, COMMANDS)) + 2
    hidden = ("",) if verbose else ("", MORE, STAGES)
    groups = dict.fromkeys(command.group for command in COMMANDS.values() if command.group not in hidden)
    lines = [f"usage: {PROGRAM} <command> [arguments]", f"       {PROGRAM} help <command>"]
    if verbose:
        lines += [f"       {PROGRAM} {VERSION}", f"       {PROGRAM} {COMPLETION} bash|zsh"]
    for group in groups:
        lines += ["", f"{group}:"]
        lines += [f"  {name:<{width}}{each.help}" for name, each in COMMANDS.items() if each.group == group]
    if not verbose:
        lines += ["", f"first: {PROGRAM} start quick --photos /path/to/photos", f"more:  {PROGRAM} {VERBOSE}"]
    return "\n".join(lines)


def version() -> str:
    """The program's name, and the version of the project, which CITATION.cff has."""
    lines = (Path(__file__).parents[1] / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    (number,) = (line.removeprefix("version: ") for line in lines if line.startswith("version: "))
    return f"{PROGRAM} {number}"


def completion(words: Sequence[str]) -> str:
    """The script with which a shell completes the program's words. Ends this process if it names no such shell."""
    import shtab

    from pipeline.planning.presets import NAMES

    parser = Parser(prog=PROGRAM, add_help=False)
    parser.add_argument(COMPLETION, choices=("bash", "zsh"))
    commands = parser.add_subparsers()
    stages = [name for name, command in COMMANDS.items() if command.group == STAGES]
    values = {"preset": NAMES, "arguments": stages, "stage": stages}
    files = dict.fromkeys(PATHS, shtab.FILE) | {"FOLDER": shtab.DIRECTORY}
    for name, command in COMMANDS.items():
        if command.group:
            each = commands.add_parser(name, help=command.help)
            command.arguments(each)
            for action in each._actions:
                action.choices = action.choices or values.get(action.dest)
                if action.metavar in files:
                    vars(action)["complete"] = files[action.metavar]
    return shtab.complete(parser, parser.parse_args(words).print_completion)


def parse(name: str, words: Sequence[str], below: str = "") -> argparse.Namespace:
    """The arguments of a command. Ends this process with status 2 if they are not what the command takes.

    `below`: the folder in which a person typed them, from the project's folder; NOWHERE without a project. A relative
    path is from that folder, so it is made one from the project's folder, in which the program works.
    """
    below = below.removeprefix(NOWHERE)
    parser = Parser(prog=f"{PROGRAM} {name}", description=COMMANDS[name].help)
    COMMANDS[name].arguments(parser)
    parser.set_defaults(command=name, below=below)
    if any(re.fullmatch("(--[a-z-]+=)?", word) for word in words):  # --model '' is not as without --model
        parser.error(f"{shlex.join(words)}: a word is empty; is a variable of the shell not set?")
    if name == "repro" and HELP.isdisjoint(words):  # its arguments are those of dvc repro
        return argparse.Namespace(command=name, below=below, arguments=[*words])
    arguments = parser.parse_args(words)
    for action in parser._actions if below else ():
        value = getattr(arguments, action.dest, None)
        if action.metavar in PATHS and value and not (action.dest == "photos" and value.startswith(NO_PATH)):
            paths = from_below(value, below) if isinstance(value, str) else [from_below(path, below) for path in value]
            setattr(arguments, action.dest, paths)
    if name == "verify" and arguments.what not in (None, *words[:1]):
        parser.error(f"options of {arguments.what} come after this word")
    return arguments


def unknown(name: str) -> str:
    """What is said of a word that names no command: the nearest command, if there is one."""
    guess = did_you_mean(difflib.get_close_matches(name, COMMANDS, n=1))
    return f"{PROGRAM}: {name}: no such command; {f'{guess} ' if guess else ''}{PROGRAM} lists them"
