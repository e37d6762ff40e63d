"""Runs of the pipeline with other params, or of another commit, and what they say together. No stage imports it."""
