"""Cross-entropy that keeps nothing but the scores, as one operation.

summed (cross_entropy) --> kernels, on a GPU
"""

from outsize.strategies.kernels.entropy.cross_entropy import summed

__all__ = ["summed"]
