"""What a model really does before its tiles are believed: at other sizes, at other places, in other batches.

graphs ----> at two sizes: the halo (derive), and what has none
alike -----> on shapes alone (logged), at the sizes that it will be given: does it do the same?
trial -----> run on small pictures: whole and in tiles, in batches and alone, again and again
probe -----> NaN beyond the halo: does any come through?
"""

from outsize.measure.trying.alike import differing_at, does_as_traced, does_the_same
from outsize.measure.trying.graphs import derive
from outsize.measure.trying.probe import ProbeResult, probe_halo
from outsize.measure.trying.trial import try_history, try_tiling

__all__ = [
    "ProbeResult",
    "derive",
    "differing_at",
    "does_as_traced",
    "does_the_same",
    "probe_halo",
    "try_history",
    "try_tiling",
]
