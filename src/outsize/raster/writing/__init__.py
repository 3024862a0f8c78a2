"""Writes maps: blocks as they are finished, then a Cloud-Optimized GeoTIFF with its style.

finished cores --> TileStore (write, layout) --> make_cog (cog) --> write_style (style)
                   one TIFF per Layer            overviews          names and colours in QGIS
any raster ------> copy_as_cog (cog)
objects ---------> write_ids (object_ids)
grids of numbers -> write_grids (grids)
"""

from outsize.raster.writing.cog import copy_as_cog, make_cog
from outsize.raster.writing.grids import write_grids
from outsize.raster.writing.object_ids import write_ids
from outsize.raster.writing.style import write_style
from outsize.raster.writing.write import Layer, TileStore

__all__ = ["Layer", "TileStore", "copy_as_cog", "make_cog", "write_grids", "write_ids", "write_style"]
