"""Samples made ahead by threads and processes, in order."""
