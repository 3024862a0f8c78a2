"""What a step changes besides gradients, found and put back: a step that failed, or was a trial, leaves no trace.

Before -------- buffers and random numbers, copied to memory that stays
Reachable ----- what the code of a forward can reach: variables of files, attributes, containers (kept)
   '- left_as_it_was: both, around steps that only try;  followed_on_shapes: around a forward without values
"""

from outsize.strategies.state.before import Before, followed_on_shapes, left_as_it_was
from outsize.strategies.state.kept import equal
from outsize.strategies.state.reachable import Reachable

__all__ = ["Before", "Reachable", "equal", "followed_on_shapes", "left_as_it_was"]
