"""The one exception that means "the user can mend this": it is shown as it stands, without a traceback."""


class Refusal(Exception):
    """What cannot be done as asked. Its text names the key or file, the value, what is allowed, and the remedy."""
