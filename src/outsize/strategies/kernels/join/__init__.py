"""A convolution over two tensors side by side; backward never joins them, nor their gradients.

joined_convolution (joined) --> kernels, on a GPU;  ConvWindow: how it looks;  can_shift: with the bias before it, too
"""

from outsize.strategies.kernels.join.joined import ConvWindow, can_shift, joined_convolution

__all__ = ["ConvWindow", "can_shift", "joined_convolution"]
