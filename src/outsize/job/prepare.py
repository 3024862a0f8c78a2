"""The section of a job on raw files and what they are made into before training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from outsize.job.fields import Section, Strings


class PrepareSection(Section):
    """What raw files are, and what they become."""

    images: Strings = Field((), description="raw scenes: files or patterns, relative to the job file")
    labels: str = Field(
        "{stem}_labels.tif",
        description="their labels: raster or vector files, relative to the image; or one vector file; empty: none",
    )
    stack: dict[str, str] = Field(
        {}, description="of raw scenes of one file per band: band -> file, relative to the image"
    )
    frames: str = Field(
        "", description="folder of raw frames of radar, relative to the job file; instead of images"
    )
    variable: str = Field("", description="field of raw frames in netCDF; default: the only one that is rain")
    unit: str = Field("", description="of raw frames: mm/h, mm, kg m-2, dBZ; default: what the files say")
    max_mm_h: float = Field(300.0, gt=0, le=327, description="of frames: more counts as not known")
    max_gap_minutes: float | None = Field(
        None, gt=0, description="between two frames that one is made from; default: two steps"
    )
    resolution: float | None = Field(
        None, gt=0, description="of frames: side of a pixel, in units of the system"
    )
    to: str = Field("prepared", description="folder for what is prepared, relative to the job file")
    crs: str | None = Field(
        None, description='coordinate system of all scenes, "EPSG:32633"; default: their own'
    )
    resampling: Literal["nearest", "bilinear", "cubic"] = Field(
        "bilinear", description="of reprojected pixels"
    )
    max_bad_share: float = Field(0.0, ge=0, lt=1, description="share of files that may be set aside")
    workers: int | None = Field(None, ge=1, description="processes of this machine; default: its cores")
    scheduler: str | None = Field(
        None, description='of a Dask cluster, instead of processes: "tcp://host:8786"'
    )
    timeout_s: float = Field(10.0, gt=0, description="until a scheduler counts as not there")
