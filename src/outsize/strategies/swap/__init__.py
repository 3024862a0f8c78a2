"""Copies between a device and host memory, on streams of their own."""
