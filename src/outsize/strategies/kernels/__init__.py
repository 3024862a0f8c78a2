"""Layers that run by other kernels than torch's: less memory read, less kept.

fusible --> Fuse, in the plan --> fused_layers (layers): each layer by the kernel for it, or by torch's where none suits
  norm/ entropy/ join/ pool/   Triton kernels, each with its operation
  folded, enlarged             by torch's own kernels, put together otherwise
"""

from outsize.strategies.kernels.fused_layer import standing_in
from outsize.strategies.kernels.layers import fused_layers, fusible
from outsize.strategies.kernels.norm import fusing, normed

__all__ = ["fused_layers", "fusible", "fusing", "normed", "standing_in"]
