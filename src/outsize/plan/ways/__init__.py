"""The ways to run a training step, and the choice among them.

StepRequest --> ways      plain, recompute and swap (paging: by pages), whole blocks (blocks), micro-batches, tiles
                offload   weights, gradients and the optimizer's state on the host
                compiled  which modules are compiled;  fuse  which layers are fused
                   |
                ladder    exact before approximate, then the fastest that fits
                   |
                fitting   choose_train: a Plan within a job's limits, or what would be needed
"""

from outsize.plan.ways.compiled import blocks_to_compile
from outsize.plan.ways.fitting import choose_train
from outsize.plan.ways.fuse import find_fusible
from outsize.plan.ways.ladder import choose, choose_offloaded, choose_recompute
from outsize.plan.ways.paging import paged_room_bytes
from outsize.plan.ways.ways import plain

__all__ = [
    "blocks_to_compile",
    "choose",
    "choose_offloaded",
    "choose_recompute",
    "choose_train",
    "find_fusible",
    "paged_room_bytes",
    "plain",
]
