"""Lays out the files of run folders as one HTML page that needs nothing else."""
