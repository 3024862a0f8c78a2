"""The section of a job on what is fetched before anything else."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from outsize.job.fields import Section, Strings


class AcquireSection(Section):
    """What is fetched, to where, and at which pace."""

    to: str = Field("raw", description="folder that files go to, relative to the job file")
    list: str = Field("", description="text file of addresses, relative to the job file")
    urls: Strings = Field((), description="addresses, patterns and {time:%Y%m%d_%H%M}, as in a list")
    first: datetime | None = Field(None, description="the first time that {time:...} stands for")
    last: datetime | None = Field(None, description="and the last")
    step_minutes: float | None = Field(None, gt=0, description="from one time to the next")
    parallel: int = Field(4, ge=1, le=64, description="files at once")
    rate_per_s: float | None = Field(None, gt=0, description="requests begun in a second; default: no limit")
    tries: int = Field(5, ge=1, description="of a file, since the last byte of it arrived")
    timeout_s: float = Field(30.0, gt=0, description="without a byte, until a connection counts as broken")
