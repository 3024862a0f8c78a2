"""Labels that are rasters: on the grid of their scene, brought onto it, or refused.

labels, scene --> lie_on_grid (grid) --> yes: read as they are
                                     --> another coordinate system: warp_labels (warp) --> write_labels (write)
"""

from outsize.raster.labels.grid import lie_on_grid, not_on_scene
from outsize.raster.labels.warp import warp_labels
from outsize.raster.labels.write import KEY_TAG, is_made_of, write_labels

__all__ = ["KEY_TAG", "is_made_of", "lie_on_grid", "not_on_scene", "warp_labels", "write_labels"]
