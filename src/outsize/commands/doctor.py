"""`outsize doctor`: what this machine has, and what is missing."""

from __future__ import annotations

import platform
import shutil
from importlib import metadata
from typing import Any

from outsize.progress import Reporter
from outsize.units import format_bytes

_LIBRARIES = (
    "torch",
    "numpy",
    "rasterio",
    "pyogrio",
    "shapely",
    "pyproj",
    "scipy",
    "safetensors",
    "pydantic",
)


def doctor(reporter: Reporter) -> dict[str, Any]:
    """Report Python, libraries, GPU, driver, GDAL, memory and disk."""
    import psutil
    import torch

    from outsize import __version__
    from outsize.data.feeding import num_cores
    from outsize.measure.machine import look_at_machine, pick_device

    machine = look_at_machine(pick_device("auto"))
    total_bytes = psutil.virtual_memory().total
    facts: dict[str, Any] = {
        "outsize": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": num_cores(),
        "host memory": f"{format_bytes(total_bytes)}, {format_bytes(machine.host_free_bytes)} free",
        "disk here": f"{format_bytes(shutil.disk_usage('.').free)} free",
        "torch build": f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        "GPU": _gpu(),
        "GDAL": _gdal(),
        **{name: _version(name) for name in _LIBRARIES},
    }
    width = max(len(name) for name in facts)
    lines = "\n".join(f"{name:<{width}}  {value}" for name, value in facts.items())
    reporter.say("doctor", lines, **facts)
    return facts


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        reason = "this torch is built without CUDA" if torch.version.cuda is None else "no driver or no card"
        return f"none ({reason}); everything runs on the CPU"
    names = []
    for index in range(torch.cuda.device_count()):
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        names.append(f"{name}, {format_bytes(total_bytes)}, {format_bytes(free_bytes)} free")
    return "; ".join(names)


def _gdal() -> str:
    try:
        from rasterio import __gdal_version__
    except ImportError as error:
        return f"missing: {error}; install rasterio"
    return str(__gdal_version__)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"missing: pip install {name}"
