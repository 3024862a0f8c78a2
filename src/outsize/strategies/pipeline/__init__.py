"""A model in stages over several ranks, through which the micro-batches of a step go.

model --traced--> graph --cutting--> a program for each stage        parameters stay the model's own, by their names
order of work, played out by the plan --> running: forward, backward, one task after another
                                             '-> messages: values forward, gradients back, skips straight
"""

from outsize.strategies.pipeline.stepping import piped

__all__ = ["piped"]
