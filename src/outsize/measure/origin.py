"""What a result came from: versions, command, folder and time."""

from __future__ import annotations

import platform
import shlex
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = (
    "outsize",
    "torch",
    "torchvision",
    "timm",
    "segmentation-models-pytorch",
    "numpy",
    "scipy",
    "rasterio",
    "pyogrio",
    "pyproj",
    "shapely",
    "pillow",
    "safetensors",
    "pydantic",
)


def origin() -> dict[str, Any]:
    """Return what facts.json holds of it."""
    from rasterio import __gdal_version__

    name, *arguments = sys.argv
    return {
        "command": shlex.join([Path(name).name, *arguments]),
        "folder": str(Path.cwd()),
        "when": datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "GDAL": str(__gdal_version__),
            **{name: version for name in _LIBRARIES if (version := _version(name)) is not None},
        },
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
