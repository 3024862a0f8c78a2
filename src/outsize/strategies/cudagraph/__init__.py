"""A step captured once and replayed as one CUDA graph.

step --> graphed (capture): runs NUM_PLAIN times, is captured, then replayed; Recordings let its memory go
              '-> pages/: memory of a capture by pages, where it has no room in one piece
"""

from outsize.strategies.cudagraph.capture import NUM_PLAIN, Beside, Recordings, graphed
from outsize.strategies.cudagraph.pages import NO_MEMORY, why_not_paged

__all__ = ["NO_MEMORY", "NUM_PLAIN", "Beside", "Recordings", "graphed", "why_not_paged"]
