"""Copies between a device and host memory, on streams of their own.

saved hooks --> Shuttle (shuttle): one training
                  '-> Trip (move): one forward and its backward --> streams: out, in, and who waits for whom
                         | when each leaves and returns: schedule    pinned: page-locked memory, used again
                         '-> MovedStorage: where a tensor is
Meter, Counters (traffic): what was moved, how fast, and how long compute waited
"""

from outsize.strategies.swap.move import MovedStorage, Trip
from outsize.strategies.swap.shuttle import Shuttle
from outsize.strategies.swap.traffic import Counters, Meter

__all__ = ["Counters", "Meter", "MovedStorage", "Shuttle", "Trip"]
