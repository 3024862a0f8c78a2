"""The small net, its card and its scenes, as the engine of scenes is tested with, and a run with all its files."""

from tests.infer.conftest import card, net, scene_pixels, tiling
from tests.report.conftest import full_run

__all__ = ["card", "full_run", "net", "scene_pixels", "tiling"]
