"""Perennial: images in class folders become a trained, measured, versioned classifier; repeated, the same bytes."""
