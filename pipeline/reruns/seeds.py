"""Test accuracies of one recipe over seeds: the committed file of them, and whether other ones are lower by chance.

The file has the params of the trainings and the hashes of their inputs. Figures of other params or of other data are
refused. Code is not compared: a change that trains other models changes the accuracy of the claimed seed, too, and that
one must be the committed one.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import optimize, stats

from pipeline.base import files, schema
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Params
from pipeline.training import identity
from pipeline.versioning.dvc_lock import Claims, Hashes

STAGES = ("train", "evaluate")  # those whose outputs depend on the kind of processor
FEWEST = 2  # seeds on each side: one has no spread
LEVEL = 0.05  # a lower mean that chance alone gives less often than this is a difference, as in MLPerf
FOUND = 0.8  # the share of cases in which a drop that counts as visible is found
RECORD = "perennial verify --record-seeds 5, where the claim comes from; then commit the file"


@dataclass(frozen=True)
class Seed:
    """The test accuracy of the training with this seed."""

    __pydantic_config__ = schema.STRICT

    seed: int
    accuracy: schema.Share


@dataclass(frozen=True)
class Recorded:
    """The content of the file."""

    __pydantic_config__ = schema.STRICT

    inputs: Hashes
    params: dict[str, Any]  # dotted name → value
    seeds: tuple[Seed, ...]


@dataclass(frozen=True)
class Sample:
    """Accuracies of several seeds: how many, their mean, and their standard deviation."""

    count: int
    mean: float
    spread: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.spread:.4f} over {self.count} seeds"


def sample(accuracies: Sequence[float]) -> Sample:
    """The summary of at least two accuracies."""
    return Sample(len(accuracies), statistics.mean(accuracies), statistics.stdev(accuracies))


def probability(here: Sample, recorded: Sample) -> float:
    """How often chance alone gives a mean as low as `here`: the p-value of Student's one-sided t-test."""
    if here.spread == recorded.spread == 0:
        return float(here.mean >= recorded.mean)
    summaries = (value for part in (here, recorded) for value in (part.mean, part.spread, part.count))
    return float(stats.ttest_ind_from_stats(*summaries, alternative="less").pvalue)


def visible_drop(here: Sample, recorded: Sample) -> float:
    """The drop of the mean accuracy that the test finds in four of five cases, with these numbers and this spread."""
    freedom = here.count + recorded.count - 2
    squares = sum((part.count - 1) * part.spread**2 for part in (here, recorded))
    error = math.sqrt(squares / freedom * (1 / here.count + 1 / recorded.count))
    limit = stats.t.ppf(1 - LEVEL, freedom)
    return error * float(optimize.brentq(lambda shift: stats.nct.sf(limit, freedom, shift) - FOUND, 0, 100))


def verdict(here: Sample, recorded: Sample) -> tuple[bool, str]:
    """Whether the accuracies here are lower than chance explains, and the sentence that says so, with its figures."""
    p = probability(here, recorded)
    figures = f"test accuracy {here} here, {recorded} committed, p = {p:.2g}"
    if p < LEVEL:
        return True, f"different: lower than seeds explain: {figures} (below {LEVEL})"
    return False, (
        f"the same within what seeds do, in other bytes: {figures} ({LEVEL} or more); "
        f"a drop of {visible_drop(here, recorded):.4f} would be found in 4 of 5 cases"
    )


def path(config: Params) -> Path:
    """The committed file: beside eval.json, which has the accuracy of the claimed seed."""
    return Path(config.paths.metrics) / "seeds.json"


def decisive(config: Params) -> dict[str, Any]:
    """The params that decide the accuracy, except the seed, by dotted name. Those of data are in the inputs' hashes."""
    return {key: value for key, value in identity.settings(config, STAGES).items() if key != "train.seed"}


def inputs(claims: Claims) -> Hashes:
    """The hashes of the data that training and evaluation read: what other stages wrote."""
    read = {path for name in STAGES for path in claims[name]["deps"]}
    outs = (claim["outs"].items() for name, claim in claims.items() if name not in STAGES)
    return {path: md5 for written in outs for path, md5 in written if path in read}


def write(file: Path, config: Params, claims: Claims, accuracies: dict[int, float]) -> None:
    """Write the file: seed → test accuracy, and what they belong to."""
    rows = [{"seed": seed, "accuracy": found} for seed, found in accuracies.items()]
    files.write_json(file, {"inputs": inputs(claims), "params": decisive(config), "seeds": rows})


def recorded(config: Params, claims: Claims, claimed: float) -> Recorded:
    """The content of the committed file. `claimed` is the committed accuracy of the committed seed.

    Raises UserError if the file is missing or damaged, has too few seeds, or is of another recipe. The message has each
    setting and each input that differs.
    """
    file = path(config)
    found, remedy = schema.json_of(file, Recorded, f"make it: {RECORD}"), f"make it again: {RECORD}"
    if len(found.seeds) < FEWEST:
        raise UserError(Fault(str(file), f"{len(found.seeds)} seeds", "value", "", f"{FEWEST} or more", remedy))
    why = "it is recorded with other params or data"
    differing = [
        Fault(f"{file}: {key}", repr(there.get(key)), "differs", f"now {here.get(key)!r}", remedy=f"{why}; {remedy}")
        for there, here in ((decisive(Params()) | found.params, decisive(config)), (found.inputs, inputs(claims)))
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key)
    ]
    if differing:
        raise UserError(*differing)
    for known in found.seeds:
        if known.seed == config.train.seed and known.accuracy != claimed:
            value = f"seed {known.seed} has test accuracy {known.accuracy}, the committed eval.json has {claimed}"
            why = "they are of other code or of another machine"
            raise UserError(Fault(str(file), value, "differs", why, remedy=remedy))
    return found
