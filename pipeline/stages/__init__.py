"""The stages of dvc.yaml. `run(config)` of each module does the work."""
