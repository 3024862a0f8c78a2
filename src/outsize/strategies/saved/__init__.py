"""Keeps each tensor that autograd saves, recomputes it in backward, or hands it to swap.

forward --> SavedTensors (hooks): the one pair of pack and unpack hooks
              '-> packing: a name for each tensor, and what a plan says of it
                    | watch, lineage: how it was made --> recipes: the operations that recompute it
                    '-> values: what is held for it until backward asks;  moving --> swap
Draws (draws): random numbers of a forward, drawn again
"""

from outsize.strategies.saved.draws import Draws
from outsize.strategies.saved.hooks import SavedTensors
from outsize.strategies.saved.packing import SavedStats

__all__ = ["Draws", "SavedStats", "SavedTensors"]
