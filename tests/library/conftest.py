"""The small net, its card and its scenes, as the engine of scenes is tested with."""

from tests.infer.conftest import card, net, scene_pixels, tiling

__all__ = ["card", "net", "scene_pixels", "tiling"]
