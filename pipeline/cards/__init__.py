"""The model card: what README.md says beside the model."""
