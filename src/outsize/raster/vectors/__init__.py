"""Polygons: read, burnt, traced and written."""
