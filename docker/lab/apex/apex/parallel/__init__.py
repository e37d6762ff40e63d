"""Stand-in: not Apex."""


class DistributedDataParallel:
    """Can be imported, and no more."""

    def __init__(self) -> None:
        raise NotImplementedError("this image was built with the stand-in for Apex")
