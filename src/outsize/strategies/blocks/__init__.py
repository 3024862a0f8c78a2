"""Blocks whose forward runs again in backward, and the trial of which of them may.

trial: unfit --> which blocks do otherwise when they run again, each tried by itself
checkpointed (checkpointing) --> torch's checkpoint around each block, and
   '- Checks (alike): what backward has run again is compared with what forward did; RunsOtherwise where it differs
"""

from outsize.strategies.blocks.alike import Checks, RunsOtherwise
from outsize.strategies.blocks.checkpointing import checkpointed, others_hooks
from outsize.strategies.blocks.trial import unfit

__all__ = ["Checks", "RunsOtherwise", "checkpointed", "others_hooks", "unfit"]
