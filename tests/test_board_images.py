"""The pictures for TensorBoard: every crop has its class, and every cell its count."""

import numpy as np
import pytest

from pipeline.training import board_images


def test_crops_are_in_a_grid_above_their_classes() -> None:
    """Five crops take two rows of four; each has its color, and a line with letters below it."""
    images = np.zeros((5, 32, 32, 3), np.uint8)
    images[:, :, :, 0] = np.arange(5)[:, None, None] * 50
    grid = board_images.crops(images, ["cat", "ñandú", "花 with a very long name that is cut", "a\nb", "cat"])
    side, strip = board_images.SMALLEST, board_images.STRIP
    assert grid.shape == (2 * (side + strip), 4 * side, 3)
    for number in range(5):
        row, column = divmod(number, 4)
        cell = grid[row * (side + strip) :, column * side :]
        assert cell[side // 2, side // 2].tolist() == [50 * number, 0, 0]
        assert (cell[side : side + strip, :side] < 128).any()


def test_the_matrix_is_dark_where_a_class_went() -> None:
    """Rows are shares: of a class with one image, and of one with many, the cells are as dark."""
    picture = board_images.confusion(np.array([[1, 0], [75, 25]]), ["a", "b"])
    cell = board_images.CELL
    corners = [
        [picture[board_images.STRIP + cell * i + 2, board_images.NAMES + cell * j + 2] for j in (0, 1)] for i in (0, 1)
    ]
    assert corners[0][0].tolist() == list(board_images.DARK)
    assert corners[0][1].tolist() == [255, 255, 255]
    assert corners[1][0].sum() < corners[1][1].sum() < 3 * 255
    assert (picture[:, : board_images.NAMES] < 128).any()  # the names


def test_many_classes_make_a_picture_of_bounded_size() -> None:
    """Without numbers and names, at most as large as there are classes or 720 pixels. A class without an image is 0."""
    for classes in (21, 1000):
        picture = board_images.confusion(np.eye(classes, dtype=np.int64) * 3, [str(n) for n in range(classes)])
        assert picture.shape[0] == picture.shape[1] <= max(classes, board_images.SIDE)
    assert board_images.confusion(np.zeros((30, 30), np.int64), [""] * 30).min() == 255


@pytest.mark.parametrize("name", ["", "a", "W" * 500, "花" * 40])
def test_a_name_is_cut_to_its_room(name: str) -> None:
    """It is never wider than asked for."""
    assert board_images.font().getlength(board_images.fitting(name, 60)) <= 60
