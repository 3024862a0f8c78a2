"""Traces what was found to polygons, and writes them for a GIS: GeoPackage or GeoJSON.

map of classes --> scan strips (regions) --> rings --> trace (outlines) --> write_polygons (region_layers)
objects        --> outline (object_shapes) --------------------------> write_objects (object_layers)
"""

from outsize.raster.vectors.features import choose_driver
from outsize.raster.vectors.object_layers import ObjectSummary, write_objects
from outsize.raster.vectors.object_shapes import Masked, outline
from outsize.raster.vectors.region_layers import write_polygons

__all__ = ["Masked", "ObjectSummary", "choose_driver", "outline", "write_objects", "write_polygons"]
