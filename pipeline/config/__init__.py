"""The params: their types, defaults and file. Nothing here imports torch."""
