"""What DVC and Git keep: dvc.lock, the cache, and what a killed DVC leaves."""
