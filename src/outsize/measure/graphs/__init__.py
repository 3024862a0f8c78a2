"""The graph of a model, without running it.

module --> export (torch.export, on shapes) --> as_graph: each operation under one name (opnames) --> ModelGraph
              '------------ trace: both, at the size of an example -------------------------------------'
"""

from outsize.measure.graphs.exporting import (
    EXAMPLE_HEIGHT_PX,
    EXAMPLE_WIDTH_PX,
    as_graph,
    example_shape,
    export,
    quiet,
    trace,
)

__all__ = ["EXAMPLE_HEIGHT_PX", "EXAMPLE_WIDTH_PX", "as_graph", "example_shape", "export", "quiet", "trace"]
