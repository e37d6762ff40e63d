"""A training around its steps: learning rates, checkpoints, run folders, provenance, the monitor."""
