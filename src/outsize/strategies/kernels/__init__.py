"""Layers that run by other kernels than torch's: less memory read, less kept.

fusible --> Fuse, in the plan --> fused_layers (layers): each layer by the kernel for it, or by torch's where none suits
  norm/ entropy/ join/ pool/   Triton kernels, each with its operation
  folded, enlarged             by torch's own kernels, put together otherwise
  later --> sliced             joined and enlarged by slices, when a convolution reads it
"""

from outsize.strategies.kernels.fused_layer import standing_in
from outsize.strategies.kernels.later import made_later
from outsize.strategies.kernels.layers import fused_layers, fusible, made_by_slices
from outsize.strategies.kernels.norm import fusing, normed

__all__ = ["fused_layers", "fusible", "fusing", "made_by_slices", "made_later", "normed", "standing_in"]
