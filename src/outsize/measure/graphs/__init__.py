"""The graph of a model, without running it.

module --> export (torch.export, on shapes) --> as_graph: each operation under one name (opnames) --> ModelGraph
              '------------ trace: both, at the size of an example -------------------------------------'
"""

from outsize.measure.graphs.exporting import (
    as_graph,
    example_shape,
    export,
    export_training,
    module_call,
    quiet,
    trace,
)

__all__ = [
    "as_graph",
    "example_shape",
    "export",
    "export_training",
    "module_call",
    "quiet",
    "trace",
]
