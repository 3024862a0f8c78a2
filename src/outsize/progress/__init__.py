"""Says how a long verb is getting on, and keeps count of what its time went to.

activities   which activity a verb is in, from when to when
reporter     bars, lines and JSON; each bar is an activity, and others are named
live         what moves in a terminal: a bar, or a panel of it and what is known
"""

from outsize.progress.activities import Activity
from outsize.progress.reporter import Bar, Reporter, Style

__all__ = ["Activity", "Bar", "Reporter", "Style"]
