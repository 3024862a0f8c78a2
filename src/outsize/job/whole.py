"""A whole job, and a workflow of several: its sections, those on models, limits and published results among them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from outsize.job.acquire import AcquireSection
from outsize.job.data import DataSection
from outsize.job.fields import Bytes, Section, Strings
from outsize.job.predict import PredictSection
from outsize.job.prepare import PrepareSection
from outsize.job.train import TrainSection
from outsize.job.tune import TuneSection
from outsize.known.tables import filled_in


class ModelSection(BaseModel):
    """A model by name; every other key is an option of that model and checked by its builder."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    name: str = "unet"

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class LimitsSection(Section):
    """What a plan must stay within."""

    gpu_memory: Bytes | None = Field(None, description="default: what the card has free")
    host_memory: Bytes | None = Field(
        None,
        description="for a step on a CPU, or for what a step on a GPU swaps to the host; default: most of what is free",
    )
    tile_px: int | None = Field(None, ge=8, description="side of a core at prediction; default: planned")
    halo_px: int | None = Field(None, ge=0, description="default: derived from the model")
    allow_approximate: bool = False
    passes: bool = Field(
        True,
        description="predict exactly in several passes over the tiles where the model looks at the whole picture",
    )


class PublishedSection(Section):
    """A published result of this job; `evaluate` prints it beside the run's own."""

    source: str = Field("", description="where it was published")
    scores: dict[str, float] = Field(
        {}, description="overall scores, by the names in scores.json: mean_iou = 0.721"
    )
    classes: dict[str, dict[str, float]] = Field({}, description="scores of classes: sky = {iou = 0.908}")


class Job(Section):
    """A whole job."""

    task: Literal["segment", "instances", "detect", "classify", "forecast"] = "segment"
    seed: int = Field(0, ge=0, lt=2**31)
    run: str = Field(
        "",
        description="run folder, relative to the current folder (paths in data are relative to the "
        "job file); default: runs/NAME OF THE JOB FILE",
    )
    data: Annotated[DataSection, BeforeValidator(filled_in)]  # what a dataset decides need not be said
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    predict: PredictSection = PredictSection()
    limits: LimitsSection = LimitsSection()
    published: PublishedSection = PublishedSection()
    acquire: AcquireSection | None = None
    prepare: PrepareSection | None = None
    tune: TuneSection | None = Field(
        None,
        description="what `outsize tune` varies: keys of [train] and [model] to ranges or choices (tune.md)",
    )


Verb = Literal["acquire", "prepare", "train", "predict", "evaluate", "verify", "report"]
_USUAL: tuple[Verb, ...] = ("acquire", "prepare", "train", "predict", "evaluate", "report")


class WorkflowFile(Section):
    """What `outsize run` runs."""

    jobs: Strings = Field(min_length=1, description="job files, relative to this file; each goes its own way")
    stages: tuple[Verb, ...] = Field(
        _USUAL, description="verbs that are run; acquire and prepare of those jobs that have such a section"
    )
    records: str = Field(
        "",
        description="folder for what is remembered, logs and timeline; default: runs/NAME OF THIS FILE-workflow",
    )
    split: Literal["test", "val", "train"] = Field("test", description="what is predicted and evaluated")
    set: Strings = Field((), description='keys of all jobs, as of --set: "train.epochs=2"')
    device: str = Field("auto", description="of all verbs that compute")
    gpus: int | None = Field(None, ge=1, description="ranks of train and predict; default: one process")
