"""Perennial: images in class folders become a trained, measured, versioned classifier; done again, the same bytes."""

import gc
import sys

from pipeline.base.errors import import_error_hook

# Importing torch makes a million objects that stay. To look for garbage among them, as often as Python does, takes a
# fifth of a start [measured]; see also the end of `stage.main`.
gc.set_threshold(100_000, 50, 50)

sys.excepthook = import_error_hook
