"""The sections of a job that say what a prediction leaves behind."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from outsize.job.fields import Section


class ObjectsSection(Section):
    """What a prediction of objects leaves behind (task instances)."""

    shape: Literal["area", "point"] = Field("area", description="outlines, or the middles of boxes")
    vectors: Literal["gpkg", "geojson"] = Field(
        "gpkg", description="gpkg: a layer for each class, on the scene's grid; geojson: one, in degrees"
    )
    min_score: float = Field(0.5, ge=0, le=1, description="objects with a lower score are left out")
    simplify_px: float = Field(0.0, ge=0, description="straighten outlines by up to so many pixels")
    ids: bool = Field(False, description="write a raster of object ids")
    picture: bool = Field(True, description="also write a picture with the outlines")


class BoxesSection(Section):
    """What a prediction of boxes leaves behind (task detect)."""

    min_score: float = Field(
        0.5, ge=0, le=1, description="boxes with a lower score are left out of layers and pictures"
    )
    vectors: Literal["auto", "gpkg", "geojson", "none"] = Field(
        "auto", description="auto: gpkg for scenes with a place on the map, none for pictures"
    )
    kitti: bool = Field(True, description="also write KITTI's text of results")
    picture: bool = Field(True, description="also write a picture with the boxes")
    flip: bool = Field(False, description="look a second time at the mirrored picture")


class ForecastSection(Section):
    """What a forecast leaves behind (task forecast), besides grids of rain."""

    probability: bool = Field(
        True, description="write how likely rain of the threshold is, a band for each lead"
    )
    threshold: float = Field(1.0, gt=0, description="of rain, in mm/h")
    film: bool = Field(True, description="write an animated GIF, beside what came where that is known")


class PredictSection(Section):
    """What a prediction leaves behind."""

    confidence: bool = Field(True, description="write the largest probability as a raster")
    probabilities: bool = Field(False, description="write one band of probability per class")
    threshold: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="with one logit (model.logits = 1): probability above which a pixel is of class 2; default: 0.5",
    )
    polygons: Literal["auto", "gpkg", "geojson", "none"] = Field(
        "auto", description="auto: gpkg for scenes with a place on the map, none for pictures"
    )
    min_area_m2: float = Field(0.0, ge=0)
    simplify_m: float = Field(0.0, ge=0)
    overviews: Literal["mode", "nearest"] = "mode"
    objects: ObjectsSection = ObjectsSection()
    boxes: BoxesSection = BoxesSection()
    forecast: ForecastSection = ForecastSection()
