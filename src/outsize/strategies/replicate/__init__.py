"""The same model on every rank, each with some samples of the step: together one step of the whole batch.

    rank 0  samples 0 1 2  forward, backward  --.   gradients summed while backward still runs,
    rank 1  samples 3 4    forward, backward  --'   bucket after bucket, in one order on all ranks

Losses are sums over counts of the whole batch, so gradients add up to those of one process: nothing is averaged.
"""

from outsize.strategies.replicate.gradients import replicated
from outsize.strategies.replicate.layers import (
    batch_norm_over_ranks,
    drawn_for_all,
    look_across,
    normalised,
)
from outsize.strategies.replicate.shards import share_state
from outsize.strategies.replicate.share import Share, share_out

__all__ = [
    "Share",
    "batch_norm_over_ranks",
    "drawn_for_all",
    "look_across",
    "normalised",
    "replicated",
    "share_out",
    "share_state",
]
