"""Batch norm with what is behind it.

FusedNorm (batch_norm) --> kernels          in training: statistics, norm and ReLU, and their backward
normed (fused) ----------> fused_kernels    by statistics that are known: norm, a sum and ReLU
"""

from outsize.strategies.kernels.norm.batch_norm import FusedNorm, sums_of_channels
from outsize.strategies.kernels.norm.fused import fusing, normed

__all__ = ["FusedNorm", "fusing", "normed", "sums_of_channels"]
