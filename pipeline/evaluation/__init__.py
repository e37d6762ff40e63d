"""Metrics, the tables of predictions, the exported ONNX file, and the limits of an answer."""
