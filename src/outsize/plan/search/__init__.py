"""The cheapest choice of what is recomputed and what is swapped, within a budget of memory.

mixture --> search     at several prices of a byte moved, then improved by trials
   |        choice     what the step holds with a choice, kept up to date
   |        timeline   played out: when each copy leaves and returns, and who waits for it
   '-> Mixture: recipes and swaps, their peak, and the seconds they cost
"""

from outsize.plan.search.mixture import Mixture, Room, mix
from outsize.plan.search.timeline import Link

__all__ = ["Link", "Mixture", "Room", "mix"]
