"""A step captured once and replayed as one CUDA graph."""
