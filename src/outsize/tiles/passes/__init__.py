"""A whole picture in passes over its tiles, for models that look at all of it; integers only.

    graph, traced at the size of the picture
        |  rules    how each operation runs on a part: part by part, added up over all parts, or once
        |  cut      what to keep between passes, so that it is least
        v
      PassGraph        pass 0        pass 1              last pass
                    tiles 0..n    tiles 0..n          tiles 0..n
                    |   keep A ----> read A --> keep B --> read B --> output
                    |   pool a    |  pool b         |
                    +-- add up ---+-- add up -------+
        |  regions  walked backwards from a tile's own parts
        v
      Walk, Work    of each tile: what it reads, makes, keeps and adds

A kept map lies there whole, so a tile of the next pass reads its surroundings from it, and computes nothing twice
but the few rows that one pass looks over its own borders.
"""

from outsize.tiles.passes.layout import PassGraph, lay_out
from outsize.tiles.passes.parts import Map, Role
from outsize.tiles.passes.regions import TileWork, Walk

__all__ = [
    "Map",
    "PassGraph",
    "Role",
    "TileWork",
    "Walk",
    "lay_out",
]
