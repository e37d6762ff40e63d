"""What a person is told of photos and of a run: predictions, and the last lines of a run."""
