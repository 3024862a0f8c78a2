"""Processes that work on one job together: who is who, and how they agree.

--gpus N (spread), torchrun, srun
                            joined()                  World
RANK, WORLD_SIZE, ...  ->   one meeting place    ->   rank 0 is the owner: plans, writes, says
                            (a store per attempt)     all: sum, broadcast, gather, agree
"""

from outsize.ranks.joining import joined
from outsize.ranks.meeting import is_of_ranks
from outsize.ranks.starting import own_device, spread
from outsize.ranks.world import ALONE, World

__all__ = ["ALONE", "World", "is_of_ranks", "joined", "own_device", "spread"]
