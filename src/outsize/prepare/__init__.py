"""Turns raw files into what training reads: pieces made by many processes, on this machine or on a cluster."""
