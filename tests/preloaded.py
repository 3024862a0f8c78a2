"""Loads, once and before processes are forked, what each of them would else take a second or two to load again."""

from __future__ import annotations

import gc
import importlib
import pkgutil

import torch

import outsize
from outsize.measure.facts import gather_facts
from outsize.measure.machine import look_at_machine
from outsize.models import build_model

# what rooms import when it is needed
LATE = (
    "PIL.JpegImagePlugin",
    "concurrent.futures.process",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "multiprocessing.forkserver",
    "multiprocessing.queues",
    "pyogrio.raw",
    "pyproj",
    "rasterio.features",
    "rasterio.shutil",
    "rasterio.vrt",
    "scipy.ndimage",
    "scipy.sparse.csgraph",
    "shapely",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.record_writer",
    "tomli_w",
    "torch.utils.tensorboard",
    "xml.sax.saxutils",
)


def load() -> None:
    """Import every room but kernels of a GPU, and read a graph; no backward, after which none might be forked."""
    rooms = (each.name for each in pkgutil.walk_packages(outsize.__path__, "outsize."))
    for name in (*LATE, *(each for each in rooms if not each.endswith(("__main__", "kernels")))):
        importlib.import_module(name)
    # Not torch.set_num_threads: each thread of a child would set it again, in a pool that a fork has left broken.
    model = build_model("unet", num_classes=2, in_channels=1, levels=2, width=2)
    gather_facts(model, 1, look_at_machine(torch.device("cpu")), bf16=False)
    gc.collect()
    gc.freeze()  # else the first collection in a child copies all of the parent's memory
