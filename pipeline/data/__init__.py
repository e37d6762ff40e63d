"""Image files are decoded, checked, compared and assigned to splits."""
