"""Several runs of the pipeline, and what they say together: all folds, and sweeps. No stage imports it."""
