"""A model in stages over several ranks, through which the micro-batches of a step go.

model --traced--> graph --cutting--> a program for each stage        parameters stay the model's own, by their names
                   '-> WeightParts: who holds which weights; the whole model on the owner, to save and to validate
order of work, played out by the plan --> running: forward, backward, one task after another
                                             '-> messages: values forward, gradients back, skips straight
"""

from outsize.strategies.pipeline.cutting import cut_traced, layers_of
from outsize.strategies.pipeline.mesh import replicas_among, share_among, stages_among
from outsize.strategies.pipeline.parts import WeightParts
from outsize.strategies.pipeline.stepping import piped

__all__ = [
    "WeightParts",
    "cut_traced",
    "layers_of",
    "piped",
    "replicas_among",
    "share_among",
    "stages_among",
]
