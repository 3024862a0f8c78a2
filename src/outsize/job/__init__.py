"""The job file: TOML in, checked values out. Only commands see the whole of it."""

from outsize.job.acquire import AcquireSection
from outsize.job.data import ClassSpec, DataSection, SplitSection
from outsize.job.fields import LOSS_NAMES, parse_colour
from outsize.job.frames import FramesSection
from outsize.job.load import (
    check_job,
    check_limits,
    dump_job,
    has_section,
    load_job,
    load_section,
    load_workflow,
)
from outsize.job.predict import BoxesSection, ForecastSection, ObjectsSection, PredictSection
from outsize.job.prepare import PrepareSection
from outsize.job.train import Phase, TrainSection
from outsize.job.tune import Choices, Range
from outsize.job.whole import Job, LimitsSection, ModelSection, PublishedSection, WorkflowFile

__all__ = [
    "LOSS_NAMES",
    "AcquireSection",
    "BoxesSection",
    "Choices",
    "ClassSpec",
    "DataSection",
    "ForecastSection",
    "FramesSection",
    "Job",
    "LimitsSection",
    "ModelSection",
    "ObjectsSection",
    "Phase",
    "PredictSection",
    "PrepareSection",
    "PublishedSection",
    "Range",
    "SplitSection",
    "TrainSection",
    "WorkflowFile",
    "check_job",
    "check_limits",
    "dump_job",
    "has_section",
    "load_job",
    "load_section",
    "load_workflow",
    "parse_colour",
]
