"""Polygons of a user, laid on the grid of a scene: labels, single objects, an area of interest.

vector file --> layers (opened by one driver alone) --> burn_labels (burn)      one raster of classes
                                                    --> burn_single (single)    a mask for each polygon
                                                    --> open_aoi (aoi)          AreaOfInterest
"""

from outsize.raster.polygons.aoi import AreaOfInterest, open_aoi
from outsize.raster.polygons.burn import PolygonLabels, attribute_values, burn_labels, list_attributes
from outsize.raster.polygons.layers import is_vector
from outsize.raster.polygons.single import burn_single

__all__ = [
    "AreaOfInterest",
    "PolygonLabels",
    "attribute_values",
    "burn_labels",
    "burn_single",
    "is_vector",
    "list_attributes",
    "open_aoi",
]
