"""The stages of dvc.yaml, and the frame that they share."""
