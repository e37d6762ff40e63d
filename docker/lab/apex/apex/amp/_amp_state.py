"""Stand-in: not Apex."""

_amp_state = None
