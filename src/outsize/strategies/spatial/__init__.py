"""One picture over several ranks: each holds some of its rows and columns, and layers exchange borders.

    rank 0   rows   0 ..  511    |  conv 3x3: the last row goes down, the first one of rank 1 comes up
    rank 1   rows 512 .. 1023    |  nothing is computed twice, and norms see the whole picture

Backward takes the same way: what a border row received as gradient goes home and is added there.

    before a plan   borders_of: what would be sent    before a training   refuse_apart: are parts the whole?
    in a step       SpreadStep, by Spread of layers, each by its Shard
"""

from outsize.strategies.spatial.dry import borders_of
from outsize.strategies.spatial.layers import Spread
from outsize.strategies.spatial.shard import Shard, shard_of
from outsize.strategies.spatial.step import SpreadStep
from outsize.strategies.spatial.trial import refuse_apart

__all__ = ["Shard", "Spread", "SpreadStep", "borders_of", "refuse_apart", "shard_of"]
