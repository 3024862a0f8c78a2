"""What running a model changes, found and put back: a trial leaves no trace, nor does a step that failed.

Reachable ------- what the code of a forward can reach: attributes, containers, variables of files, generators (kept)
   '- as_it_was, left_as_it_was: with torch's random numbers, around a forward and around whole steps
   '- reach_as_it_was: the same but for weights, buffers and random numbers, around a forward without values
Before ---------- buffers and random numbers of a step that may fail, in memory that stays
counts_of ------> set_forward: as if it had run more often (counts)
"""

from outsize.measure.state.before import Before, as_it_was, left_as_it_was, reach_as_it_was
from outsize.measure.state.counts import counts_of, set_forward
from outsize.measure.state.kept import equal
from outsize.measure.state.reachable import Reachable

__all__ = [
    "Before",
    "Reachable",
    "as_it_was",
    "counts_of",
    "equal",
    "left_as_it_was",
    "reach_as_it_was",
    "set_forward",
]
