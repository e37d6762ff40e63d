"""From packed images to batches: which rows, random parameters, resampling, augmentation, where images are kept."""
