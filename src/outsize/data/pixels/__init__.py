"""Changes of a sample's pixels that training draws: where they are, how large, and their colours.

draw_size --> read --> resize --> augment: flip, turn, noise, jitter and soften (colours, row by row in strips)
"""

from outsize.data.pixels.augmentations import MAX_SCALE, augment, draw_size
from outsize.data.pixels.sizes import resize

__all__ = ["MAX_SCALE", "augment", "draw_size", "resize"]
