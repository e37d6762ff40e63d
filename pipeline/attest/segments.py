"""Repeats parts of a training in a work copy, from states that run.keep_states kept, and compares the states.

metrics/history.csv claims the SHA-256 of the state at the end of each epoch. A segment is the epochs between two kept
states. It is repeated from the first one. Both states have to be those of the claim. So segments join: what one begins
with is what the one before ends with. Which segments are repeated is drawn with a seed of the checker, after the claim.
"""

import json
import math
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pipeline.attest import comparison, repetition
from pipeline.base import files, schema
from pipeline.base.errors import DIFFERENT, Fault, UserError
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.running import claim
from pipeline.running.claim import Claim
from pipeline.studies.workcopy import WorkCopy
from pipeline.versioning import children, dvc_lock, programs
from pipeline.versioning.dvc_lock import StageHashes

CLAIM, DIFFERENCE = "claim.json", "difference.json"  # in a work copy
KEEP = "run.keep_states: 1, perennial repro, then commit; dvc pull, if somebody else has kept them"


@dataclass(frozen=True)
class Segment:
    """The epochs after `first` up to `last`; 0 is the beginning of the training."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"epochs {self.first + 1} to {self.last}"


def claimed_states(metrics: Path) -> dict[int, str]:
    """Epoch → SHA-256 of the state at its end, of the epochs that have one. Raises UserError for a damaged file."""
    path = metrics / figures.HISTORY
    with schema.reading(path, schema.checkout(path), KeyError, TypeError):
        return {int(row["epoch"]): row["state_sha256"] for row in files.read_csv(path) if row["state_sha256"]}


def kept_epochs(states: Mapping[int, str]) -> list[int]:
    """The epochs at whose end the state is both claimed and kept."""
    return [epoch for epoch in sorted(states) if claim.state_file(epoch).is_file()]


def draw(kept: Sequence[int], share: float, seed: int, part: int = 1, parts: int = 1) -> list[Segment]:
    """The segments that this checker repeats: of `share` of all, drawn with `seed`, every `parts`-th from `part` on."""
    segments = [Segment(first, last) for first, last in zip([0, *kept], kept, strict=False)]
    count = math.ceil(share * len(segments))
    return random.Random(seed).sample(segments, count)[part - 1 :: parts]  # noqa: S311  (the seed is published)


def write_claim(folder: Path, one: Claim) -> dict[str, str]:
    """Write a claim into a work copy. Returns the variable with which a training there finds it."""
    path, difference = (folder.absolute() / name for name in (CLAIM, DIFFERENCE))
    files.remove(difference)
    files.write_json(path, asdict(replace(one, difference=str(difference))))
    return {claim.VARIABLE: str(path)}


def differing_epoch(folder: Path) -> int:
    """The epoch after which a training in this work copy had another state than the claim; 0: none."""
    path = folder / DIFFERENCE
    return int(json.loads(path.read_bytes())) if path.exists() else 0


def repeat(copy: WorkCopy, one: Claim) -> int:
    """Train in a work copy as far as a claim says. Returns the first epoch whose state differs; 0: all are equal.

    Raises UserError if the training fails.
    """
    environ = {**programs.environment(), **repetition.variables(copy), **write_claim(copy.folder, one)}
    status = children.run([sys.executable, "-m", "pipeline", "train"], cwd=copy.folder, env=environ)
    if epoch := differing_epoch(copy.folder):
        return epoch
    if status:
        raise UserError(Fault("the stage train", f"exit status {status}", "failed", remedy="see above"))
    states = claimed_states(copy.folder / copy.config.paths.metrics)  # a training that ended too early lacks some
    repeated = (epoch for epoch in one.states if epoch <= one.last_epoch)
    return next((epoch for epoch in repeated if one.states[epoch] != states.get(epoch)), 0)


def from_kept(states: Mapping[int, str], epoch: int, last_epoch: int = 0) -> Claim:
    """The claim of a training that begins with the newest kept state up to an epoch's end; without one, at the start.

    `last_epoch`: as in Claim.
    """
    kept = [each for each in kept_epochs(states) if each <= epoch]
    if not kept:
        return Claim(dict(states), last_epoch=last_epoch)
    start = str(claim.state_file(kept[-1]).absolute())
    return Claim(dict(states), start=start, start_epoch=kept[-1], last_epoch=last_epoch)


def audit(
    config: Params, stage_hashes: StageHashes, share: float, seed: int, part: tuple[int, int], processes: int | None
) -> int:
    """Repeat the drawn segments, then the outputs, and print what this shows. Returns 0, or DIFFERENT.

    `part`: the number of this checker, from 1 on, and of all. `processes`: their number, or that of the params.
    Raises UserError if states are missing, or if a training fails.
    """
    history = Path(config.paths.metrics) / figures.HISTORY
    states, values = claimed_states(history.parent), with_processes(config, processes)
    kept = kept_epochs(states)
    check_kept(states, kept, len(files.read_csv(history)))
    drawn = draw(kept, share, seed, *part)
    if not drawn:
        text, count = "/".join(map(str, part)), len(draw(kept, share, seed))
        raise UserError(Fault("--part", text, "value", f"the seed draws {count}", f"a first number up to {count}"))
    print(f"verify: the seed {seed} draws of {len(kept)} segments: {', '.join(map(str, drawn))}", flush=True)
    with tempfile.TemporaryDirectory(prefix="perennial-verify-") as temporary:
        copy = repetition.make_copy(Path(temporary) / "copy", config, stage_hashes, ["train"], values)
        for segment in drawn:
            if epoch := repeat(copy, from_kept(states, segment.first, segment.last)):
                print(f"\nverify: differs: {segment}: the state after epoch {epoch}")
                return DIFFERENT
            print(f"verify: {segment}: the same states", flush=True)
        # Nothing is left to train after the last state. So its training only writes the outputs.
        if repeat(copy, from_kept(states, kept[-1])):
            print(f"\nverify: differs: {claim.state_file(kept[-1])}, the state after the last epoch")
            return DIFFERENT
        differing = comparison.compare(stage_hashes["train"]["outs"], copy.folder)
    if differing:
        print(f"\nverify: differs: {', '.join(differing)}: not what the state after the last epoch gives")
        return DIFFERENT
    print(
        f"\nverify: {len(drawn)} of {len(kept)} segments have the states of {history}, and the last state gives the "
        f"outputs of train in {dvc_lock.LOCK}; one forged segment would be missed with a chance of "
        f"{1 - len(drawn) / len(kept):.0%} (the seed was drawn after the claim)"
    )
    return 0


def check_kept(states: Mapping[int, str], kept: Sequence[int], epochs: int) -> None:
    """Raise UserError if the last of so many epochs has no claimed or no kept state: nothing would join the model."""
    if epochs not in states:
        raise UserError(
            Fault(
                "train.hash_every_epochs", f"no state of epoch {epochs} is claimed", "missing", allowed="1",
                remedy="perennial repro, then commit",
            )
        )  # fmt: skip
    if epochs not in kept:
        raise UserError(Fault(str(claim.state_file(epochs)), "not found", "missing", remedy=KEEP))


def with_processes(config: Params, processes: int | None) -> dict[str, object]:
    """The param for another number of processes. Raises UserError if it would change the weights."""
    if processes is None:
        return {}
    if config.train.parallel != "elastic":
        reason = f"with train.parallel: {config.train.parallel} it changes the weights"
        raise UserError(Fault("--processes", str(processes), "pair", reason, str(config.run.processes)))
    params.with_values(config, {"run.processes": processes})  # refuses a number that is not allowed
    return {"run.processes": processes}
