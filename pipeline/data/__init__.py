"""Images on disk: decoding, packing, drawing. No torch up to here."""
