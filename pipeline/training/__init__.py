"""What a training has beside its steps: learning rates, checkpoints, run folders, provenance, the monitor."""
