"""The two exceptions that are no faults of the program: they are shown as they stand, without a traceback."""


class Refusal(Exception):
    """What cannot be done as asked. Its text names the key or file, the value, what is allowed, and the remedy."""


class Stopped(Exception):
    """Somebody asked to stop, and what was done so far is saved. Its text says who, where, and how to go on."""
