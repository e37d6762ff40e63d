"""Estimates of the memory that decoding an image takes, and a budget of memory that threads share.

The figures are measured for opening, decoding, conversion to RGB, turning and hashing. They change no result.
"""

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

# Bytes per pixel. A JPEG takes memory for its coefficients, at full size also if it is decoded at a reduced scale, and
# for the decoded image. A WebP takes more than other formats, for its canvases; a JPEG 2000 for 32 bits per sample; an
# AVIF or HEIC for planes of 16 bits, if it has more than 8 bits per sample.
JPEG_COEFFICIENTS, JPEG_PIXEL, PIXEL = 8, 5, 14
PIXEL_OF = {"WEBP": 21, "JPEG2000": 24, "AVIF": 20, "HEIF": 20}
LINE = 5  # pixels; a decoder's data for one line takes as much memory as these
FILE = 3  # an opened file takes this number of times its size
HEADER = 2**26  # the most bytes that comments take as text, in every format but JPEG


class MemoryBudget:
    """A number of bytes that threads reserve. A thread waits until enough are free."""

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, size: int) -> Iterator[Callable[[int], bool]]:
        """Wait until `size` bytes are free, and reserve them for the block. If that is more than all, reserve all.

        Yields a function that raises the reservation to a larger number of bytes, or returns False if they are not
        free. It does not wait: threads that hold memory and wait for more could be in a deadlock.
        """
        held_bytes = 0

        def take(total: int) -> bool:
            nonlocal held_bytes
            more = max(min(total, self._total) - held_bytes, 0)
            if more > self._free:
                return False
            self._free -= more
            held_bytes += more
            return True

        def grow(total: int) -> bool:
            with self._changed:
                return take(total)

        with self._changed:
            self._changed.wait_for(lambda: take(size))
        try:
            yield grow
        finally:
            with self._changed:
                self._free += held_bytes
                self._changed.notify_all()


BUDGET = MemoryBudget(2**31)  # for all images that this process decodes at the same time


def largest_file(max_pixels: int) -> int:
    """The most bytes that a file of this many pixels can have: no format stores more than 8 bytes per pixel."""
    return HEADER + 8 * max_pixels


def opening_bytes(content: BinaryIO, is_copied: bool) -> int:
    """The most bytes that a file takes while it is opened, from the disk or from a copy in memory."""
    is_jpeg = content.read(2) == b"\xff\xd8"
    return (FILE + is_copied) * content.seek(0, io.SEEK_END) + (0 if is_jpeg else HEADER)


def decoding_bytes(file_format: str, stored_size: tuple[int, int], decoded_size: tuple[int, int]) -> int:
    """The most bytes that decoding takes, in addition to opening.

    The sizes are width and height in the file and after decoding. Only a JPEG can be decoded at a smaller size.
    """
    if file_format == "JPEG":
        return JPEG_COEFFICIENTS * _weight(stored_size) + JPEG_PIXEL * _weight(decoded_size)
    return PIXEL_OF.get(file_format, PIXEL) * _weight(stored_size)


def _weight(size: tuple[int, int]) -> int:
    """The pixels of an image, plus the cost of its lines. It does not change when the image is turned."""
    return size[0] * size[1] + LINE * max(size)
