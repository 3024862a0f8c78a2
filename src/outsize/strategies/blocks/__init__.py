"""Whole blocks that run forward again in backward, and the trial of which blocks may."""
