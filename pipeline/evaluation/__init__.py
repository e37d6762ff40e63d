"""What a model predicts, and the metrics of it."""
