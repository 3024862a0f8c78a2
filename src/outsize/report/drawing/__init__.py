"""HTML, curves and pictures as values."""
