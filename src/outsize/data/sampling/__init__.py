"""Which windows a training sees: every choice is a function of seed, epoch and sample.

labels --> index_blocks: pixels of each class by block (blocks) --.
                    seed, epoch, sample --> a place (draw) -------+--> TrainingWindows: read, changed (windows)
                    frames --> RainWindows: those that are seen, and those that follow (rain)
                            '-> SampleCounts: what was drawn; EpochMix: its classes
"""

from outsize.data.sampling.blocks import areas_of, index_blocks, samples_per_cover
from outsize.data.sampling.draw import EpochMix, SampleCounts
from outsize.data.sampling.rain import RainWindows, grid_of
from outsize.data.sampling.windows import TrainingWindows

__all__ = [
    "EpochMix",
    "RainWindows",
    "SampleCounts",
    "TrainingWindows",
    "areas_of",
    "grid_of",
    "index_blocks",
    "samples_per_cover",
]
