"""Scores, as counts that can be added up over windows, scenes and ranks."""
