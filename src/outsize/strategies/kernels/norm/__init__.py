"""Batch norm with the sum before it and the ReLU behind it."""
