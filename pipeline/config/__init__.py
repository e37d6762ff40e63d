"""The params, their allowed values, and facts about this machine. Nothing here imports torch."""
