"""Samples for training, one on-disk format per file."""
