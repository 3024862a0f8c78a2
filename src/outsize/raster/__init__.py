"""Pixels in and out, with their place on Earth."""
