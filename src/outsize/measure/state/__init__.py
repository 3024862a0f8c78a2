"""What running a model changes in it, and putting that back.

as_it_was ---> taken before a run, put back behind it (kept)
counts_of ---> set_forward: as if it had run more often
"""

from outsize.measure.state.kept import as_it_was, counts_of, set_forward

__all__ = ["as_it_was", "counts_of", "set_forward"]
