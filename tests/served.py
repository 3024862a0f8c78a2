"""Imported by the server that test processes are copied from: what they would else load one by one."""

from __future__ import annotations

import gc

import psutil  # noqa: F401
import pytest  # noqa: F401
import rasterio  # noqa: F401
import torch.distributed  # noqa: F401

import outsize.planning.trying.child
import outsize.ranks.joining
import outsize.strategies.compose
import outsize.train.feed  # noqa: F401

gc.collect()
gc.freeze()  # else the first collection in a copy copies all of this
