"""Image files become packed images: fetched, assigned to splits, decoded, packed. No torch up to here."""
