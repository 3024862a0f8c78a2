"""Changes of a sample's pixels that training draws: where they are, how large, and their colours.

draw_size --> read --> resize --> augment: flip, turn, noise, jitter, light and soften (colours, row by row in strips)
"""

from outsize.data.pixels.augmentations import SHIFT_PX, augment, draw_size, most_zoom
from outsize.data.pixels.sizes import resize

__all__ = ["SHIFT_PX", "augment", "draw_size", "most_zoom", "resize"]
