"""Perennial: pictures in class folders become a trained, measured, versioned classifier; done again, the same bytes."""
