"""Masks as COCO's runs of pixels, and runs as its text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outsize.data.object import Object

_MOST_BITS = 60


def runs(each: Object, height: int, width: int) -> tuple[int, ...]:
    """Return the object as COCO's runs of pixels outside and inside in turn, down the columns of its picture.

    Of the mask alone: no array of the size of the picture is made.
    """
    window = each.window
    if window.row < 0 or window.col < 0 or window.row_end > height or window.col_end > width:
        raise ValueError(f"{window} is not inside of {height} x {width} px")
    columns = np.zeros((window.width, window.height + 2), np.int8)
    columns[:, 1:-1] = each.mask.T
    steps = np.diff(columns, axis=1)
    ends = []
    for sign in (1, -1):
        col, row = np.nonzero(steps == sign)
        ends.append((col.astype(np.int64) + window.col) * height + row + window.row)
    # a run that ends at the bottom goes on where one begins at the top of the next column
    first, stop = ends
    goes_on = first[1:] == stop[:-1]
    first, stop = first[np.r_[True, ~goes_on]], stop[np.r_[~goes_on, True]]
    borders = np.concatenate(([0], np.stack((first, stop), axis=1).ravel(), [height * width]))
    counts = np.diff(borders).tolist()
    return tuple(counts if counts[-1] else counts[:-1])


def pack_runs(counts: Sequence[int]) -> str:
    """Return runs as COCO's text: five bits in a letter, the least first; from the third on differences."""
    letters = []
    for index, count in enumerate(counts):
        number = count - counts[index - 2] if index > 2 else count
        goes_on = True
        while goes_on:
            bits = number & 31
            number >>= 5
            goes_on = number != (-1 if bits & 16 else 0)
            letters.append(chr((bits | (32 if goes_on else 0)) + 48))
    return "".join(letters)


def unpack_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of packed runs: five bits in a letter, the least first; from the third on differences.

    A letter less 48 holds five bits and, as its sixth, whether the number goes on; the fifth bit of the last letter is
    the sign.
    """
    counts: list[int] = []
    number, shift = 0, 0
    for letter in text:
        code = ord(letter) - 48
        if not 0 <= code < 64 or shift > _MOST_BITS:
            raise ValueError(f"runs with the letter {letter!r}, or a number of more than {_MOST_BITS} bits")
        number |= (code & 31) << shift
        shift += 5
        if code & 32:
            continue
        if code & 16:
            number -= 1 << shift
        counts.append(number + counts[-2] if len(counts) > 2 else number)
        number, shift = 0, 0
    return tuple(counts)
