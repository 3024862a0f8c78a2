"""What one forward pass runs in, by a plan: blocks that run again, tensors that are recomputed or swapped.

saving (saving_tensors) --> of a step that `compose` puts together
Within ------------------> of a model whose loop is not ours: its forward is replaced for as long as the block
  '-> step (owned) ------> forward, loss and backward in one call, captured where that is asked for
"""

from outsize.strategies.forward.owned import Owned
from outsize.strategies.forward.saving_tensors import Tell, saving
from outsize.strategies.forward.within import Within, refuse_inside_another

__all__ = ["Owned", "Tell", "Within", "refuse_inside_another", "saving"]
