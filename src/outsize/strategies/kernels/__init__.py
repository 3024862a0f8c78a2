"""Layers that run by other kernels than torch's: less memory read, less kept."""
