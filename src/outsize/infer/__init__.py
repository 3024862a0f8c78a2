"""Whole scenes, one batch of tiles in memory at a time; evaluation of what came out."""
