"""From packed images to batches: sampler, random parameters, resampling, augmentation, storage."""
