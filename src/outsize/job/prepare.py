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
