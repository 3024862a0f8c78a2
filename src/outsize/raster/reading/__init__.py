"""Opens scenes of strangers and reads their windows.

path --> describe (scene) --> SceneInfo (info) --> SceneReader (read) --> Raster
           | looks first: safety, tiffs, mosaic (VRT)
           | PNG and JPEG: picture, with worldfile for their place
bands, one file each --> stack_bands (stack) --> SceneInfo
"""

from outsize.raster.reading.info import SceneInfo
from outsize.raster.reading.picture import Picture, has_picture_name, upright
from outsize.raster.reading.read import SceneReader, decode_picture
from outsize.raster.reading.scene import describe
from outsize.raster.reading.stack import stack_bands

__all__ = [
    "Picture",
    "SceneInfo",
    "SceneReader",
    "decode_picture",
    "describe",
    "has_picture_name",
    "stack_bands",
    "upright",
]
