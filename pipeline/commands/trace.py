"""Find the step and the operator in which two machines differ: `perennial trace`.

    perennial trace 3              repeats epoch 3 of the commit, and writes trace.json: the state after each step
    perennial trace trace.json     the same here, compared with the file of another machine

The second call names the first step with another state. It writes a trace.json of its own, with the operators of this
step. On the first machine, `perennial trace` with that file names the operator: the first call with equal arguments and
other values. Both begin with the state before the epoch, if states/ has it (run.keep_states); else with the beginning.

Exit status: 0 if nothing differs, or there is nothing to compare with; 3 if something differs; 1 if it could not run.
"""

import tempfile
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path

from pipeline.base import files, schema
from pipeline.base.errors import DIFFERENT, Fault, UserError
from pipeline.config import identity
from pipeline.reruns import folder, runner, segments
from pipeline.reruns.workcopy import WorkCopy

FILE = Path("trace.json")


def trace(epoch: int, file: Path | None) -> int:
    """Record an epoch, or that of the file; compare, print, and write FILE. Returns the exit status."""
    from pipeline.training.trace import Trace, difference, first_step  # imports torch, which takes seconds

    config, stage_hashes = folder.checked()
    states = segments.claimed_states(Path(config.paths.metrics))
    theirs = schema.json_of(file, Trace, "make it again: perennial trace <epoch>") if file else None
    run = identity.digest([identity.settings(config, identity.TRAIN), stage_hashes["train"]["deps"]])
    if theirs and theirs.run != run:
        reason = "of other settings, data or code than the commit here"
        raise UserError(Fault(str(file), "another run", "differs", reason, remedy="check out the commit of that trace"))
    epoch = theirs.epoch if theirs else epoch
    if not 1 <= epoch <= config.train.epochs:
        raise UserError(Fault("the epoch", str(epoch), "value", allowed=f"1 to {config.train.epochs}"))
    start = replace(segments.from_kept(states, epoch - 1, epoch), states={})  # both machines record, and compare later

    def record(copy: WorkCopy, step: int) -> Trace:
        path = copy.folder.absolute() / FILE
        segments.repeat(copy, replace(start, trace=str(path), step=step))
        return replace(schema.json_of(path, Trace, "run again"), run=run)

    with tempfile.TemporaryDirectory(prefix="perennial-trace-") as temporary:
        copy = segments.make_copy(Path(temporary) / "copy", config, stage_hashes, {})
        ours = record(copy, theirs.step if theirs else 0)
        sentence = difference(theirs, ours) if theirs else ""
        if theirs and sentence and not theirs.calls:
            ours = record(copy, first_step(theirs, ours))
    if sentence:
        print(f"trace: {sentence}")
    elif theirs:
        print(f"trace: epoch {epoch}: every state is as in {file}")
    if not theirs or (sentence and not theirs.calls):
        files.write_json(FILE, asdict(ours))
        print(f"trace: {FILE} is written; on the other machine, in a clone of the same commit: perennial trace {FILE}")
    return DIFFERENT if sentence else 0


def main(arguments: Namespace) -> int:
    runner.stop_on_signals("", KeyboardInterrupt)
    text = arguments.epoch_or_file
    return trace(int(text), None) if text.isdigit() else trace(0, Path(text))
