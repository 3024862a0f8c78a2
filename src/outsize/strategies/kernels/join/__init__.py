"""A convolution of two tensors joined by channels, which are never joined."""
