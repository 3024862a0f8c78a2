"""Satellite scenes that are drawn, of any size, with labels."""
