"""What a model predicts, the metrics of it, and the image of its mistakes."""
