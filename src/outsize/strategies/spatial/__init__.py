"""One picture over several ranks: each holds some of its rows, and layers that look at neighbours exchange borders.

    rank 0   rows   0 ..  511    |  conv 3x3: the last row goes down, the first one of rank 1 comes up
    rank 1   rows 512 .. 1023    |  nothing is computed twice, and batch norm sees the whole picture

Backward takes the same way: what a border row received as gradient goes home and is added there.
"""

from outsize.strategies.spatial.layers import spread_rows
from outsize.strategies.spatial.rows import Rows, rows_of

__all__ = ["Rows", "rows_of", "spread_rows"]
