"""Perennial: pictures in class folders become a trained, measured, versioned classifier, and again with the same bytes."""
