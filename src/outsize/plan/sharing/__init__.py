"""How ranks share a batch: whole pictures on each, or each picture on several of them.

StepRequest of whole pictures --> over_ranks: its parts by grids, borders exchanged or halos anew
                                       |
                                  ways: choose_train for each  -->  the fastest that fits: a Plan with its Spatial
"""

from outsize.plan.sharing.over_ranks import BordersSent, OverRanks, choose_over_ranks, part_of

__all__ = ["BordersSent", "OverRanks", "choose_over_ranks", "part_of"]
