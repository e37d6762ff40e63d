"""Repeat what the committed dvc.lock claims, and compare every byte: what `make verify` runs.

    python -m pipeline.verify                    every stage
    python -m pipeline.verify --stage train      one stage, from inputs that DVC's cache holds

First the folder itself is checked: what decides bytes must be committed, the files must be what dvc.lock says (DVC
looks at their times, then all of them are read, and what DVC's cache has of them), and dvc.lock must be of the
committed code, params and pins (else the claim is stale). Then a temporary clone of the commit runs the stages by
force. It reads inputs from this folder's cache, takes nothing from the run cache and writes to neither. Exit status: 0
if every output has the claimed hash; 1 if not, or if it could not be tried.

The inbox and your own pretrained weights are in no commit, so with those the stage download is not repeated.
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

from pipeline.base import dvc_lock, integrity, linux, schema
from pipeline.base.errors import UserError, exit_status
from pipeline.config import params
from pipeline.config.params import Params

DECIDES = ("dvc.lock", "dvc.yaml", "params.yaml", ".dvc", ".dvcignore")  # besides what the stages depend on
NAMED = 10  # how many faults are written out
SIDE_BY_SIDE = 64  # characters of a column of provenance

Claims = dict[str, dict[str, dvc_lock.Hashes]]


def verify(only: str | None) -> bool:
    """Repeat the stages, or one, in a clone and print what came out; whether all of it is as claimed.

    Raises UserError if this folder is not in a state to be verified, or if a stage fails in the clone.
    """
    config, claims = params.load(), dvc_lock.read()
    if only is not None and only not in claims:
        raise UserError(f"--stage: {only!r} is no stage of dvc.lock; allowed: {', '.join(claims)}")
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
        found = dvc_lock.read(clone / "dvc.lock")
        different = compare(claims, found, repeated)
        for path in different:
            if path.endswith(".safetensors") and (clone / path).is_file():
                print(f"\n{path}: {tensor_differences(Path(path), clone / path)}")
        print_provenance(Path(config.paths.runs), clone / config.paths.runs)
    print(f"\nverify: {'differs: ' + ', '.join(different) if different else 'every output is as dvc.lock claims'}")
    return not different


def output(*command: str, cwd: Path | None = None, environ: dict[str, str] | None = None) -> str:
    """What a command prints. Raises UserError with its last words if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=environ or integrity.environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = (done.stderr.strip() or "no message").splitlines()[-1]
        program = " ".join(command[2:] if command[0] == sys.executable else command)
        raise UserError(f"{program} ended with exit status {done.returncode}: {words}")
    return done.stdout


def dvc(*arguments: str, cwd: Path | None = None, environ: dict[str, str] | None = None) -> str:
    return output(sys.executable, "-m", "dvc", *arguments, cwd=cwd, environ=environ)


def raise_if_any(faults: list[str]) -> None:
    """Raise UserError with the faults, if there are any, the first of them written out."""
    if len(faults) > NAMED:
        faults = [*faults[:NAMED], f"… and {len(faults) - NAMED:,} more"]
    if faults:
        raise UserError("\n".join(faults))


# Is the folder what its commit says?


def uncommitted(claims: Claims) -> list[str]:
    """The files that decide bytes and that Git has not, or not as they are."""
    decides = {*DECIDES, *(path for claim in claims.values() for path in claim["deps"])}
    listed = output("git", "status", "--porcelain", "-z", "--no-renames", "--", *sorted(decides)).split("\0")
    changed = {line[3:] for line in listed if line}  # staged as removed and still there are two lines
    return [f"{path}: not committed as it is; commit it, or restore it" for path in sorted(changed)]


def unclean(config: Params, claims: Claims) -> list[str]:
    """What is not as dvc.lock says: committed files (then the claim is stale), outputs and inputs, and the cache.

    Everything that Git has is committed as it is: `uncommitted` comes first.
    """
    stale, changed = _of_stages(json.loads(dvc("status", "--json")), _data(config, claims))
    data = json.loads(dvc("data", "status", "--granular", "--json"))
    for how, paths in data.get("uncommitted", {}).items():
        # Of a folder that changed the files are named, too; one that is missing is named alone.
        missing = set() if how == "modified" else {path.rstrip("/") for path in paths if path.endswith("/")}
        changed |= {path.rstrip("/"): how for path in paths if not _inside(path, missing)}
    return [
        *stale,
        *(
            f"{path}: {how} since the run that dvc.lock describes; dvc checkout restores it, dvc repro makes it anew"
            for path, how in sorted(changed.items())
        ),
        *(f"{path}: not in DVC's cache; dvc pull, or dvc repro" for path in sorted(data.get("not_in_cache", []))),
    ]


def _data(config: Params, claims: Claims) -> set[str]:
    """The dependencies and outputs that no commit holds."""
    outs = {path for claim in claims.values() for path in claim["outs"]}
    return {*outs, config.paths.inbox, config.paths.pretrained}


def _inside(path: str, folders: set[str]) -> bool:
    return any(parent.as_posix() in folders for parent in Path(path).parents)


def _of_stages(status: dict[str, Any], data: set[str]) -> tuple[list[str], dict[str, str]]:
    """`dvc status` in two parts: sentences about stale stages, and data that changed with how it did."""
    stale, changed = [], {}
    for name, entries in status.items():
        committed = ["its command in dvc.yaml"] if "changed command" in entries else []
        for entry in entries:
            tables = entry.values() if isinstance(entry, dict) else []
            for path, how in (item for table in tables for item in table.items()):
                if isinstance(how, dict):  # params
                    committed += [f"{path}: {key}" for key in how]
                elif path in data:
                    changed[path] = how
                else:
                    committed.append(path)
        stale += [f"{name} is stale: {what} was committed without a run; dvc repro, then commit" for what in committed]
    return stale, changed


# The clone


def plan(config: Params, claims: Claims, only: str | None) -> tuple[list[str], list[str]]:
    """The arguments for `dvc repro`, and the stages that they repeat. Raises UserError for what is in no commit."""
    unversioned = [config.paths.inbox] if config.data.source == "inbox" else []
    unversioned += [config.train.weights] if config.train.weights not in ("none", "imagenet") else []
    if only is None and not unversioned:
        return [], list(claims)
    said = f"{' and '.join(unversioned)}: in no commit, so download cannot be repeated from one"
    if only is None:
        print(f"verify: {said}; what follows it can")
        return ["--downstream", "split"], [name for name in claims if name != "download"]
    if unversioned and only == "download":
        raise UserError(f"{said}; allowed: the other stages")
    return ["--single-item", only], [only]


def prepare_clone(config: Params, claims: Claims, repeated: list[str], clone: Path, environ: dict[str, str]) -> None:
    """Clone the commit, with the cache and the archives of this folder, and bring the inputs of the repeated stages."""
    output("git", "clone", "--quiet", ".", str(clone))
    dvc("config", "--local", "cache.dir", dvc("cache", "dir").strip(), cwd=clone, environ=environ)
    archives = Path(config.paths.archives)
    if archives.is_dir():
        (clone / archives).parent.mkdir(parents=True, exist_ok=True)
        (clone / archives).symlink_to(archives.absolute())
    made = {path for name in claims if name not in repeated for path in claims[name]["outs"]}
    if inputs := sorted(made & {path for name in repeated for path in claims[name]["deps"]}):
        dvc("checkout", *inputs, cwd=clone, environ=environ)


def repeat(arguments: list[str], clone: Path, environ: dict[str, str]) -> None:
    """Run the stages in the clone by force. When this process is interrupted it ends after the last of theirs."""
    command = [sys.executable, "-m", "pipeline.repro", "--force", "--no-run-cache", "--no-commit", *arguments]
    with subprocess.Popen(command, cwd=clone, env=environ, preexec_fn=linux.die_with_parent) as process:  # noqa: PLW1509
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status:
        raise UserError(f"dvc repro of the clone ended with exit status {status}; see above")


# What came out


def compare(claims: Claims, found: Claims, repeated: Iterable[str]) -> list[str]:
    """Print a line an output; the paths of those whose hash is not the claimed one."""
    rows = [
        (path, claimed, found[name]["outs"].get(path, "none"))
        for name in repeated
        for path, claimed in claims[name]["outs"].items()
    ]
    width = max(len(path) for path, _, _ in rows)
    print(f"\n{'output':{width}}  {'claimed':36}  {'got':36}")
    for path, claimed, got in rows:
        print(f"{path:{width}}  {claimed:36}  {got:36}  {'same' if claimed == got else 'differs'}")
    return [path for path, claimed, got in rows if claimed != got]


def tensor_differences(claimed: Path, got: Path) -> str:
    """How many tensors of two files of weights differ, and by how much at most."""
    import safetensors.torch
    import torch
    from safetensors import SafetensorError
    from torch import Tensor

    def octets(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1).view(torch.uint8)

    try:
        mine, theirs = safetensors.torch.load_file(got), safetensors.torch.load_file(claimed)
    except SafetensorError as error:
        return f"not to be compared: {error}"
    names = mine.keys() | theirs.keys()
    alike = {
        name
        for name in mine.keys() & theirs.keys()
        if (mine[name].shape, mine[name].dtype) == (theirs[name].shape, theirs[name].dtype)
    }
    unequal = sorted(name for name in alike if not torch.equal(octets(mine[name]), octets(theirs[name])))
    sentence = f"{len(unequal)} of {len(names)} tensors differ"
    if unequal:
        largest, name = max(((mine[n].double() - theirs[n].double()).abs().max().item(), n) for n in unequal)
        sentence += f", by at most {largest:.3g} ({name})"
    if others := len(names) - len(alike):
        sentence += f"; {others} are of another shape or kind, or in one of the two only"
    return sentence


def print_provenance(here: Path, there: Path) -> None:
    """Print where and with what the claim and the repetition were trained, side by side."""
    for ran in sorted(there.glob("*/provenance.json")):
        # A folder of the same name: the same fingerprint. Another one is of other inputs.
        claimed, got = _flat(here / ran.relative_to(there)), _flat(ran)
        print(f"\n{'provenance':24}  {'claimed':{SIDE_BY_SIDE}}  got")
        for key in sorted(claimed.keys() | got.keys()):
            print(f"{key:24}  {claimed.get(key, '?'):{SIDE_BY_SIDE}}  {got.get(key, '?')}")


def _flat(path: Path) -> dict[str, str]:
    """A provenance.json as `section.key: text`; nothing if the file is not there."""
    if not path.is_file():
        return {}
    flat: dict[str, str] = {}
    for key, value in schema.json_of(path, dict[str, Any], f"remove it: rm {path}").items():
        inner = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
        flat |= {name: str(part) for name, part in inner.items()}
    return flat


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.verify", description="Repeat what the committed dvc.lock claims, and compare."
    )
    parser.add_argument("--stage", metavar="NAME", help="repeat this stage only")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the clone is removed then, too
        signal.signal(number, signal.default_int_handler)
    return exit_status("verify", lambda: 0 if verify(arguments.stage) else 1, interrupted="the clone is removed")


if __name__ == "__main__":
    sys.exit(main())
