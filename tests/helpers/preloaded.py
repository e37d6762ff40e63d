"""What the fork server of starts.py imports once, for all processes that it forks."""

import gc
import importlib
import sys
from pathlib import Path

import psutil

STAGES = sorted(path.stem for path in (Path(__file__).parents[2] / "pipeline/stages").glob("[a-z]*.py"))
# torch imports two of them at the first step of an optimizer, and for TensorBoard. onnxruntime is
# left out: its import starts a thread.
NAMES = (
    *(f"pipeline.stages.{stage}" for stage in STAGES), "pipeline.running.launch", "pipeline.commands.predict",
    "torch._dynamo", "torch.utils.tensorboard", "timm",
)  # fmt: skip
gc.set_threshold(100_000, 50, 50)  # as pipeline/__main__.py does
for name in NAMES:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.startswith("pipeline")]:  # each process has those of its own folder
    del sys.modules[name]
if psutil.Process().num_threads() > 1:
    raise RuntimeError("a library has started a thread: a forked process could wait for it for ever")
