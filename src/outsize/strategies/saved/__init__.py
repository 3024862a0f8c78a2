"""Keeps each tensor that autograd saves, recomputes it in backward, or hands it to swap."""
