"""Run the committed stages again, and compare every output with the committed dvc.lock: what `make verify` runs.

    python -m pipeline.verify                    every stage
    python -m pipeline.verify --stage train      one stage, from inputs that DVC's cache holds

First the folder itself is checked. Every file that decides bytes must be committed. Outputs must be as in dvc.lock: DVC
compares their times, then every byte of them and of DVC's cache is read. dvc.lock must belong to the committed code,
params and pins; otherwise it is stale. Then a temporary clone of the commit runs the stages by force. It reads inputs
from this folder's cache, takes nothing from the run cache, and writes to neither. Exit status: 0 if every output has
the claimed hash; 1 if one has not, or if verify could not run.

Your own photos and pretrained weights are in a commit only after `dvc add`. Without it, the stages that read them are
not repeated.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.base import dvc_lock, files, integrity, linux, schema
from pipeline.base.errors import UserError, exit_status
from pipeline.config import params
from pipeline.config.params import Params

DECISIVE = ("dvc.lock", "dvc.yaml", "params.yaml", ".dvc", ".dvcignore")  # and the deps of the stages
MOST_FAULTS = 10  # in one message
COLUMN = 64  # characters of the first column of values in the table of provenance

Claims = dict[str, dict[str, dvc_lock.Hashes]]


def verify(only: str | None) -> bool:
    """Run all stages, or the stage `only`, in a clone, and print the comparison. Returns whether every output is equal.

    Raises UserError if this folder is not clean, or if a stage fails in the clone.
    """
    config, claims = params.load(), dvc_lock.read()
    if only is not None and only not in claims:
        raise UserError(f"--stage: {only!r} is not a stage of dvc.lock; allowed: {', '.join(claims)}")
    raise_if_any(uncommitted(claims))
    raise_if_any(unclean(config, claims))
    raise_if_any(integrity.damage(claims))
    arguments, repeated = plan(config, claims, only)
    with tempfile.TemporaryDirectory(prefix="perennial-verify-") as temporary:
        clone = Path(temporary) / "clone"
        environ = {**integrity.environment(), "DVC_SITE_CACHE_DIR": str(Path(temporary) / "dvc")}
        commit = output("git", "rev-parse", "--short", "HEAD").strip()
        print(f"verify: repeating {', '.join(repeated)} of commit {commit} in {clone}", flush=True)
        prepare_clone(config, claims, repeated, clone, environ)
        repeat(arguments, clone, environ)
        different = compare(claims, dvc_lock.read(clone / "dvc.lock"), repeated)
        for path in different:
            if path.endswith(".safetensors") and (clone / path).is_file():
                from pipeline.models import exported  # imports torch, which takes seconds

                print(f"\n{path}: {exported.tensor_differences(Path(path), clone / path)}")
        print_provenance(Path(config.paths.runs), clone / config.paths.runs)
    print(f"\nverify: {'differs: ' + ', '.join(different) if different else 'every output is as dvc.lock claims'}")
    return not different


def output(*command: str, cwd: Path | None = None, environ: dict[str, str] | None = None) -> str:
    """The standard output of a command. Raises UserError with its last line of stderr if the command fails."""
    done = subprocess.run(
        command, cwd=cwd, env=environ or integrity.environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        message = (done.stderr.strip() or "no message").splitlines()[-1]
        program = " ".join(command[2:] if command[0] == sys.executable else command)
        raise UserError(f"{program} ended with exit status {done.returncode}: {message}")
    return done.stdout


def dvc(*arguments: str, cwd: Path | None = None, environ: dict[str, str] | None = None) -> str:
    return output(sys.executable, "-m", "dvc", *arguments, cwd=cwd, environ=environ)


def raise_if_any(faults: list[str]) -> None:
    """Raise UserError with the first ten faults and the number of the others, if there are any."""
    if len(faults) > MOST_FAULTS:
        faults = [*faults[:MOST_FAULTS], f"… and {len(faults) - MOST_FAULTS:,} more"]
    if faults:
        raise UserError("\n".join(faults))


# The checks of this folder


def uncommitted(claims: Claims) -> list[str]:
    """One sentence per file that decides bytes and differs from the commit, or is not in it."""
    deps = {path for claim in claims.values() for path in claim["deps"]}
    decisive = {*DECISIVE, *(path for path in deps if not Path(path).is_absolute())}
    listed = output("git", "status", "--porcelain", "-z", "--no-renames", "--", *sorted(decisive)).split("\0")
    changed = {
        line[3:] for line in listed if line
    }  # a file that is removed from the index and still exists has two lines
    return [f"{path}: differs from the commit; commit it, or restore it" for path in sorted(changed)]


def unclean(config: Params, claims: Claims) -> list[str]:
    """One sentence per file that is not as in dvc.lock: code and params (dvc.lock is stale), data, and the cache.

    To be called after `uncommitted`: tracked files are as in the commit.
    """
    stale, changed = _of_stages(json.loads(dvc("status", "--json")), _data(config, claims))
    data = json.loads(dvc("data", "status", "--granular", "--json"))
    for how, paths in data.get("uncommitted", {}).items():
        # DVC lists a changed folder and its changed files, but for a missing folder only the folder.
        missing = set() if how == "modified" else {path.rstrip("/") for path in paths if path.endswith("/")}
        changed |= {path.rstrip("/"): how for path in paths if not _inside(path, missing)}
    return [
        *stale,
        *(
            f"{path}: {how} since the run that dvc.lock describes; dvc checkout restores it, dvc repro makes it again"
            for path, how in sorted(changed.items())
        ),
        *(f"{path}: not in DVC's cache; dvc pull, or dvc repro" for path in sorted(data.get("not_in_cache", []))),
    ]


def _data(config: Params, claims: Claims) -> set[str]:
    """The paths of inputs and outputs that Git does not track."""
    outs = {path for claim in claims.values() for path in claim["outs"]}
    return {*outs, config.paths.inbox, config.paths.pretrained}


def _own_folders(config: Params) -> list[str]:
    """The folders of the user's own files that are inside the project."""
    return [path for path in (config.paths.inbox, config.paths.pretrained) if not Path(path).is_absolute()]


def _inside(path: str, folders: set[str]) -> bool:
    return any(parent.as_posix() in folders for parent in Path(path).parents)


def _of_stages(status: dict[str, Any], data: set[str]) -> tuple[list[str], dict[str, str]]:
    """Sentences about stale stages, and changed data (path → how it changed), from the JSON of `dvc status`."""
    stale, changed = [], {}
    for name, entries in status.items():
        committed = ["its command in dvc.yaml"] if "changed command" in entries else []
        for entry in entries:
            tables = entry.values() if isinstance(entry, dict) else []
            for path, how in (item for table in tables for item in table.items()):
                if isinstance(how, dict):  # params
                    committed += [f"{path}: {key}" for key in how]
                elif path in data or name.endswith(".dvc"):
                    changed[path] = how
                else:
                    committed.append(path)
        stale += [f"{name} is stale: {part} was committed without a run; dvc repro, then commit" for part in committed]
    return stale, changed


# The run in a clone


def unversioned(config: Params) -> dict[str, str]:
    """Stage → the input of the user's own that it reads, if no commit has this input (`dvc add` puts it into one)."""
    inputs = {}
    own, inbox = config.data.source in ("inbox", "folder"), Path(config.paths.inbox)
    if own and not (_in_project(inbox) and all(map(_is_added, files.visible(inbox)))):
        inputs["download"] = config.paths.inbox
    weights = Path(config.train.weights)
    if config.train.weights not in ("none", "imagenet") and not _is_added(weights):
        inputs["weights"] = config.train.weights
    return inputs


def _in_project(path: Path) -> bool:
    return not path.is_absolute() and not path.is_symlink()


def _is_added(path: Path) -> bool:
    """Whether a file beside this path says that DVC versions it (or the path is such a file), and Git has that file."""
    file = path if path.suffix == ".dvc" else path.with_name(f"{path.name}.dvc")
    return bool(output("git", "ls-files", "--", str(file)))


def plan(config: Params, claims: Claims, only: str | None) -> tuple[list[str], list[str]]:
    """The arguments for `dvc repro`, and the stages that it then runs. Raises UserError if `only` cannot run again."""
    skipped = unversioned(config)
    if only in skipped:
        raise UserError(f"{skipped[only]}: in no commit, so {only} cannot be repeated; allowed: the other stages")
    if only is not None:
        return ["--single-item", only], [only]
    if not skipped:
        return [], list(claims)
    for stage, path in skipped.items():
        print(f"verify: {path}: in no commit, so {stage} cannot be repeated; the other stages can")
    first = (["split"] if "download" in skipped else ["download"]) + ([] if "weights" in skipped else ["weights"])
    return ["--downstream", *first], [name for name in claims if name not in skipped]


def prepare_clone(config: Params, claims: Claims, repeated: list[str], clone: Path, environ: dict[str, str]) -> None:
    """Clone the commit, use the cache and the archives of this folder, and check out the inputs of the stages."""
    output("git", "clone", "--quiet", ".", str(clone))
    dvc("config", "--local", "cache.dir", dvc("cache", "dir").strip(), cwd=clone, environ=environ)
    archives = Path(config.paths.archives)
    if archives.is_dir():
        (clone / archives).parent.mkdir(parents=True, exist_ok=True)
        (clone / archives).symlink_to(archives.absolute())
    outs = {path for name in claims if name not in repeated for path in claims[name]["outs"]}
    inputs = sorted(outs & {path for name in repeated for path in claims[name]["deps"]})
    inputs += output("git", "ls-files", "-z", "--", *(f"{own}/*.dvc" for own in _own_folders(config))).split("\0")[:-1]
    if inputs:
        dvc("checkout", *inputs, cwd=clone, environ=environ)
    if config.data.source == "folder" and "download" in unversioned(config):  # split and prepare read it where it is
        link_inbox(Path(config.paths.inbox), clone)


def link_inbox(inbox: Path, clone: Path) -> None:
    """Let the clone read the photos of this folder. Those outside the project are at the same path for both."""
    if not inbox.is_absolute():
        files.remove(clone / inbox)
        (clone / inbox).parent.mkdir(parents=True, exist_ok=True)
        (clone / inbox).symlink_to(inbox.resolve())


def repeat(arguments: list[str], clone: Path, environ: dict[str, str]) -> None:
    """Run the stages in the clone by force. An interrupt waits until all their processes have ended."""
    command = [sys.executable, "-m", "pipeline.repro", "--force", "--no-run-cache", "--no-commit", *arguments]
    with subprocess.Popen(command, cwd=clone, env=environ, preexec_fn=linux.die_with_parent) as process:  # noqa: PLW1509
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status:
        raise UserError(f"dvc repro in the clone ended with exit status {status}; see above")


# The comparison


def compare(claims: Claims, results: Claims, repeated: Iterable[str]) -> list[str]:
    """Print one line per output. Returns the paths of the outputs whose hash is not the claimed one."""
    rows = [
        (path, claimed, results[name]["outs"].get(path, "none"))
        for name in repeated
        for path, claimed in claims[name]["outs"].items()
    ]
    width = max(len(path) for path, _, _ in rows)
    print(f"\n{'output':{width}}  {'claimed':36}  {'got':36}")
    for path, claimed, got in rows:
        print(f"{path:{width}}  {claimed:36}  {got:36}  {'same' if claimed == got else 'differs'}")
    return [path for path, claimed, got in rows if claimed != got]


def print_provenance(here: Path, there: Path) -> None:
    """Print the provenance of the claimed training and of the repeated one, side by side."""
    for repeated in sorted(there.glob("*/provenance.json")):
        # Folders of the same name have the same fingerprint, and so the same inputs.
        claimed, got = _flat(here / repeated.relative_to(there)), _flat(repeated)
        print(f"\n{'provenance':24}  {'claimed':{COLUMN}}  got")
        for key in sorted(claimed.keys() | got.keys()):
            print(f"{key:24}  {claimed.get(key, '?'):{COLUMN}}  {got.get(key, '?')}")


def _flat(path: Path) -> dict[str, str]:
    """A provenance.json as `section.key` → text; empty if the file is missing."""
    if not path.is_file():
        return {}
    flat: dict[str, str] = {}
    for key, value in schema.json_of(path, dict[str, Any], f"remove it: rm {path}").items():
        inner = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
        flat |= {name: str(part) for name, part in inner.items()}
    return flat


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.verify",
        description="Run the committed stages again, and compare every output with dvc.lock.",
    )
    parser.add_argument("--stage", metavar="NAME", help="run this stage only")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that these also remove the clone
        signal.signal(number, signal.default_int_handler)
    return exit_status("verify", lambda: 0 if verify(arguments.stage) else 1, interrupted="the clone is removed")


if __name__ == "__main__":
    sys.exit(main())
