"""What a step does: every operation, storage and saved tensor, written down while it runs.

trace_step (step) ------> a step on shapes alone, of a model without memory (ghost)
answer_on_shapes --------> a forward on shapes alone, and the layouts of its answer (answers)
record (recorder) <------ any step, real ones too
   '-> lives of storages, flops and bytes of operations, workspaces of recurrent layers, origins of backward
"""

from outsize.measure.tracing.answers import AnswerLeaf, answer_on_shapes
from outsize.measure.tracing.ghost import ghost_of
from outsize.measure.tracing.recorder import BATCH_NORMS, differs_again, record
from outsize.measure.tracing.step import state_bytes, trace_step

__all__ = [
    "BATCH_NORMS",
    "AnswerLeaf",
    "answer_on_shapes",
    "differs_again",
    "ghost_of",
    "record",
    "state_bytes",
    "trace_step",
]
