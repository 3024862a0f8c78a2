"""Where a model is cut into stages for several ranks, by the time, memory and bytes of its layers.

chain_of: a traced step ---> Chain (layers, and tensors between them)
                               |--> cut_chain    consecutive stages, one for each rank
                               '--> fold_chain   encoder and decoder of one level on one rank
                                      '-> Partition: stages, the least time of a step, reasons
"""

from outsize.plan.partition.chain import Chain, ChainLayer, Stream, chain_of
from outsize.plan.partition.cut import cut_chain
from outsize.plan.partition.folded import fold_chain
from outsize.plan.partition.stages import Partition, Terms

__all__ = [
    "Chain",
    "ChainLayer",
    "Partition",
    "Stream",
    "Terms",
    "chain_of",
    "cut_chain",
    "fold_chain",
]
