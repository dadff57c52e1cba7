"""Pictures of grids, for simulators that can draw only in a window."""

from __future__ import annotations

import numpy as np

CELL = 16  # side of a cell in pixels; its last row and column are grid lines
COLOURS = {
    "black": (40, 40, 40),
    "blue": (66, 110, 180),
    "green": (60, 150, 90),
    "grey": (170, 170, 170),
    "orange": (225, 140, 40),
    "red": (200, 60, 50),
}
# The front of an arrow, as rows and columns of the square in its cell.
FRONTS = {
    "UP": (slice(0, 5), slice(None)),
    "DOWN": (slice(-5, None), slice(None)),
    "LEFT": (slice(None), slice(0, 5)),
    "RIGHT": (slice(None), slice(-5, None)),
}

Colour = tuple[int, int, int]


class Grid:
    """A picture of rows and columns of cells, uint8 [16·rows, 16·columns, 3]."""

    def __init__(self, rows: int, columns: int):
        self.pixels = np.full((rows * CELL, columns * CELL, 3), 255, np.uint8)
        self.pixels[CELL - 1 :: CELL] = 225
        self.pixels[:, CELL - 1 :: CELL] = 225

    def inside(self, row: int, column: int, inset: int = 0) -> np.ndarray:
        """The pixels of a cell without its grid lines and without `inset` pixels on each side."""
        top, left, size = row * CELL, column * CELL, CELL - 1
        return self.pixels[top + inset : top + size - inset, left + inset : left + size - inset]

    def fill(self, row: int, column: int, colour: Colour, inset: int = 0) -> None:
        self.inside(row, column, inset)[...] = colour

    def arrow(self, row: int, column: int, colour: Colour, direction: str) -> None:
        """A square with a dark front, UP, DOWN, LEFT or RIGHT."""
        square = self.inside(row, column, 3)
        square[...] = colour
        square[FRONTS[direction]] = COLOURS["black"]

    def dots(self, row: int, column: int, number: int) -> None:
        """Up to nine white dots, in rows of three."""
        cell = self.inside(row, column, 3)
        for dot in range(min(number, 9)):
            top, left = 3 * (dot // 3), 3 * (dot % 3)
            cell[top : top + 2, left : left + 2] = 255
