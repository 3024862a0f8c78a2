"""The cheapest choice of what is recomputed and what is swapped, within a budget of memory.

mixture --> search     at several prices of a byte moved, then improved by trials
   |        choice     what the step holds with a choice, kept up to date
   |        timeline   played out: when each copy leaves and returns, and who waits for it
   |        pace       what of the device's time and the host's calls makes the step longer
   '-> Mixture: recipes and swaps, their peak, and the seconds they cost
"""

from outsize.plan.search.mixture import Mixture, mix
from outsize.plan.search.pace import HostAndDevice, Room
from outsize.plan.search.timeline import Link

__all__ = ["HostAndDevice", "Link", "Mixture", "Room", "mix"]
