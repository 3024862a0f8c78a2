"""Pixels in and out, with their place on Earth."""

import warnings

# Said better, or rightly not said, by our own messages. Set once, before any thread runs: what
# `warnings.catch_warnings` sets and takes back holds for all threads, so two that open files disturb each other.
for _remark in ("Dataset has no geotransform", "'crs' was not provided", "More than one layer found"):
    warnings.filterwarnings("ignore", message=_remark, module=r"(outsize\.raster\.|rasterio$)")
