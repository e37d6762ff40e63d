"""Test accuracies of one recipe over seeds: their committed file, and a t-test of whether other ones are lower.

The file has the params of the trainings and the hashes of their inputs. Figures of other params or of other data are
refused. Code is not compared: a change that trains other models also changes the accuracy of the committed seed, which
must be the committed one.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import optimize, stats

from pipeline.base import files, schema
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Params
from pipeline.studies.pooling import Spread
from pipeline.versioning import identity
from pipeline.versioning.dvc_lock import Hashes, StageHashes

STAGES = ("train", "evaluate")  # those whose outputs depend on the kind of processor
VARIED = ("train.seed",)  # what the trainings differ in
FEWEST = 2  # seeds on each side: one has no variance
LEVEL = 0.05  # the significance level, as in MLPerf
POWER = 0.8  # the probability that the test finds the drop that it names
RECORD = "perennial verify record-seeds 5, on the machine of dvc.lock; then commit the file"


@dataclass(frozen=True)
class Seed:
    """The test accuracy of the training with this seed."""

    __pydantic_config__ = schema.STRICT

    seed: int
    accuracy: schema.Share


@dataclass(frozen=True)
class SeedsFile:
    """The content of the file."""

    __pydantic_config__ = schema.STRICT

    inputs: Hashes
    params: dict[str, Any]  # dotted name → value
    seeds: tuple[Seed, ...]


def in_words(sample: Spread) -> str:
    """The mean and the standard deviation of the accuracies of several seeds."""
    return f"{sample.mean:.4f} ± {sample.deviation:.4f} over {sample.count} seeds"


def p_value(new: Spread, reference: Spread) -> float:
    """The p-value of Student's one-sided t-test. Null hypothesis: the new accuracies have the reference's mean."""
    if new.deviation == reference.deviation == 0:
        return float(new.mean >= reference.mean)
    summaries = (value for sample in (new, reference) for value in (sample.mean, sample.deviation, sample.count))
    return float(stats.ttest_ind_from_stats(*summaries, alternative="less").pvalue)


def detectable_drop(new: Spread, reference: Spread) -> float:
    """The drop of the mean accuracy that the test finds with the probability POWER, for samples of these sizes."""
    freedom = new.count + reference.count - 2
    squares = sum((sample.count - 1) * sample.deviation**2 for sample in (new, reference))
    error = math.sqrt(squares / freedom * (1 / new.count + 1 / reference.count))
    limit = stats.t.ppf(1 - LEVEL, freedom)
    return error * float(optimize.brentq(lambda shift: stats.nct.sf(limit, freedom, shift) - POWER, 0, 100))


def t_test(new: Spread, reference: Spread) -> tuple[bool, str]:
    """Whether the new accuracies are significantly lower, and the sentence with the result of the test."""
    p = p_value(new, reference)
    figures = f"test accuracy {in_words(new)} here, {in_words(reference)} committed, p = {p:.2g}"
    if p < LEVEL:
        return True, f"significantly lower: {figures} (below {LEVEL})"
    return False, (
        f"no significant difference, in other bytes: {figures} ({LEVEL} or more); "
        f"a drop of {detectable_drop(new, reference):.4f} would be found in 4 of 5 cases"
    )


def path(config: Params) -> Path:
    """The committed file. It is beside eval.json, which has the accuracy of the committed seed."""
    return Path(config.paths.metrics) / "seeds.json"


def decisive(config: Params) -> dict[str, Any]:
    """The params that decide the accuracy, except the seed, by dotted name. Those of data are in the inputs' hashes."""
    return identity.settings(config, STAGES, VARIED)


def write(file: Path, config: Params, stage_hashes: StageHashes, accuracies: dict[int, float]) -> None:
    """Write the file: seed → test accuracy, and what they belong to."""
    rows = [{"seed": seed, "accuracy": accuracy} for seed, accuracy in accuracies.items()]
    files.write_json(file, {"inputs": identity.inputs(stage_hashes, STAGES), "params": decisive(config), "seeds": rows})


def read(config: Params, stage_hashes: StageHashes, accuracy: float) -> SeedsFile:
    """The content of the committed file. `accuracy` is the committed one of the committed seed.

    Raises UserError if the file is missing or damaged, has too few seeds, or is of another recipe. Each
    setting and each input that differs is a fault.
    """
    file = path(config)
    content, remedy = schema.json_of(file, SeedsFile, f"make it: {RECORD}"), f"make it again: {RECORD}"
    if len(content.seeds) < FEWEST:
        raise UserError(Fault(str(file), f"{len(content.seeds)} seeds", "value", "", f"{FEWEST} or more", remedy))
    why = "it is recorded with other params or data"
    differing = [
        Fault(f"{file}: {key}", repr(old.get(key)), "differs", f"now {new.get(key)!r}", remedy=f"{why}; {remedy}")
        for old, new in (
            (decisive(Params()) | content.params, decisive(config)),
            (content.inputs, identity.inputs(stage_hashes, STAGES)),
        )
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if differing:
        raise UserError(*differing)
    for row in content.seeds:
        if row.seed == config.train.seed and row.accuracy != accuracy:
            value = f"seed {row.seed} has test accuracy {row.accuracy}, the committed eval.json has {accuracy}"
            why = "they are of other code or of another machine"
            raise UserError(Fault(str(file), value, "differs", why, remedy=remedy))
    return content
