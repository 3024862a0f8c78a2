"""Steps that are really run before a plan is made, each in a process of its own where it could do harm (child).

learn_here (profiling) -----> how long operations take, and how far the peak is off; remembered
try_compiled (compiling) ---> a step with its blocks compiled
recorded_where_faster ------> a step captured as one CUDA graph (recording, graph_trial)
paged_as_tried -------------> the same, with its memory by pages
"""

from outsize.planning.trying.compiling import try_compiled
from outsize.planning.trying.profiling import learn_from_shortage, learn_here, remembered_lesson, why_so
from outsize.planning.trying.recording import paged_as_tried, recorded_where_faster

__all__ = [
    "learn_from_shortage",
    "learn_here",
    "paged_as_tried",
    "recorded_where_faster",
    "remembered_lesson",
    "try_compiled",
    "why_so",
]
