"""The section of a job on frames that follow one another: how many are seen, how many come next, and how far apart."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from outsize.job.fields import Section
from outsize.known.leads import NUM_OUT, STEP_MINUTES, lead_names, minutes

_MOST_LEADS = 254  # a lead is numbered like a class


def _checked_thresholds(values: tuple[float, ...]) -> tuple[float, ...]:
    if not values or any(not value > 0 for value in values) or list(values) != sorted(set(values)):
        raise ValueError("one or several numbers above 0, the smallest first")
    return values


class FramesSection(Section):
    """What a sequence of frames is cut into (task forecast)."""

    step_minutes: float = Field(STEP_MINUTES, gt=0, description="between two frames")
    num_in: int = Field(10, ge=2, le=_MOST_LEADS, description="frames that the model sees")
    num_out: int = Field(NUM_OUT, ge=1, lt=_MOST_LEADS, description="frames that it forecasts")
    flow: Literal["none", "dis", "lucas-kanade", "pysteps"] = Field(
        "dis",
        description="the model also sees the last frame carried on by this optical flow, and answers with what is "
        "to be added to it; also the baseline of evaluate (dis where none)",
    )
    backwards: bool = Field(
        False,
        description="also learn from every window played backwards: of one storm, growth is not learnt without decay",
    )
    thresholds: Annotated[tuple[float, ...], AfterValidator(_checked_thresholds)] = Field(
        (1.0, 5.0, 10.0), description="of rain, in mm/h; an epoch is judged by the first"
    )
    variable: str = Field("", description="field of a netCDF file; default: the only one that is rain")
    unit: str = Field("", description="of the numbers: mm/h, mm, kg m-2, dBZ; default: what the files say")

    @property
    def step_s(self) -> int:
        """Seconds between two frames."""
        return round(60 * self.step_minutes)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Name the bands that the model sees: frames by their age, then those carried on by optical flow."""
        ages = range(self.num_in - 1, -1, -1)
        before = tuple(minutes(-age * self.step_minutes) for age in ages)
        return before if self.flow == "none" else (*before, *(f"flow {name}" for name in self.lead_names))

    @property
    def lead_names(self) -> tuple[str, ...]:
        """Name the frames that are forecast."""
        return lead_names(self.step_minutes, self.num_out)
