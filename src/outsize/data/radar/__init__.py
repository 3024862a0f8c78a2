"""Frames of rain, one after the other: netCDF-4 and HDF5 through h5py, GeoTIFF.

files --> netcdf, odim, knmi (hdf5), geotiff --> frames (times, units to mm/h), in order (listing)
              '--> windows of frames seen and frames to come, shared out by time (sequence)
                        '--> rasters in the run folder, each frame once (store)
"""

from outsize.data.radar.listing import frame_files, frames_below, frames_in_order, newest_frames
from outsize.data.radar.sequence import FrameWindow, cut, share
from outsize.data.radar.store import FrameStore

__all__ = [
    "FrameStore",
    "FrameWindow",
    "cut",
    "frame_files",
    "frames_below",
    "frames_in_order",
    "newest_frames",
    "share",
]
