"""A pickle that runs a command if a reader trusts it."""

import os


class Bomb:
    """An object that would write the file `exploded` if it were unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)

    def __repr__(self) -> str:  # without an address: the workers of pytest must give a test the same name
        return "Bomb()"
