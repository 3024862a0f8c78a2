"""Writes maps: blocks as they are finished, then a Cloud-Optimized GeoTIFF with its style."""
