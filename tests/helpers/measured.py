"""Figures of a run, as a test needs them."""

from pipeline.evaluation.figures import EvalFigures, TrainFigures


def train_figures(val_accuracy: float, val_loss: float = 1.0, epoch: int = 1) -> TrainFigures:
    """The figures of a training with this validation."""
    return TrainFigures(epoch, 1.0, 0.5, val_loss, val_accuracy)


def eval_figures(accuracy: float, low: float = 0.0, high: float = 1.0) -> EvalFigures:
    """The figures of a test with this accuracy."""
    return EvalFigures(accuracy, low, high, accuracy, accuracy, 1.0, 0.5)
