"""What a step holds that it could do without: tensors recomputed in backward, or waiting in host memory meanwhile.

StepCost --> find_recipes (recompute) --> StorageRecipe: which operations run again, and from what
         --> find_points (swap) -------> Points: what can be moved, and when it may leave and return
         --> Arena: what the allocator holds for it, gaps between tensors included
"""

from outsize.plan.memory.arena import Arena
from outsize.plan.memory.recompute import OF_IMAGES, StorageRecipe, find_recipes
from outsize.plan.memory.swap import LEAST_BYTES, Movable, Points, find_points

__all__ = [
    "LEAST_BYTES",
    "OF_IMAGES",
    "Arena",
    "Movable",
    "Points",
    "StorageRecipe",
    "find_points",
    "find_recipes",
]
