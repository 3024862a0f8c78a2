"""How ranks share a batch: whole pictures on each, or each picture on several of them; and the optimizer's state.

StepRequest of whole pictures --> over_ranks: its parts by grids, borders exchanged or halos recomputed
                                       |
                                  ways: choose_train for each  -->  the fastest that fits: a Plan with its Spatial
"""

from outsize.plan.sharing.over_ranks import BordersSent, OverRanks, choose_over_ranks, part_of
from outsize.plan.sharing.state import keepers, largest_share, sharded, with_state_in_shards

__all__ = [
    "BordersSent",
    "OverRanks",
    "choose_over_ranks",
    "keepers",
    "largest_share",
    "part_of",
    "sharded",
    "with_state_in_shards",
]
