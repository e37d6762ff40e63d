"""Stand-in: not Apex."""
