"""Max-pooling that keeps one byte for each result.

FusedPool (max_pool) --> kernels, on a GPU
"""

from outsize.strategies.kernels.pool.max_pool import FusedPool, can_pool

__all__ = ["FusedPool", "can_pool"]
