"""The section of a job on training, and its phases."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from outsize.job.fields import LossName, Section, Strings, WindowSize
from outsize.units import sides_of


class Phase(Section):
    """One stretch of training; what is left out comes from the train section."""

    name: str = "main"
    epochs: int | None = Field(None, ge=1)
    lr: float | None = Field(None, gt=0)
    log_offset: float | None = Field(None, gt=1, description="for a phase with an output of its own")
    trainable: Strings = Field(
        (), description="prefixes of parameter names, or parts that the model names; empty trains everything"
    )
    output: str | None = Field(
        None,
        description="which output is trained, where the model has several; labels are reduced to its size",
    )


class TrainSection(Section):
    """How to train."""

    epochs: int = Field(20, ge=1)
    tile_px: WindowSize = Field(256, description="side of a training window, or [height, width]")
    batch: int = Field(8, ge=1)
    samples_per_epoch: int | None = Field(None, ge=1, description="default: cover the scenes once")
    optimizer: Literal["sgd", "adamw"] = "adamw"
    lr: float = Field(1e-3, gt=0)
    lr_for_batch: int | None = Field(
        None, ge=1, description="batch that lr is meant for; with another one it changes by lr_rule"
    )
    lr_rule: Literal["linear", "root"] = Field(
        "linear", description="N times the batch: N times lr, or its square root"
    )
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0)
    schedule: Literal["constant", "polynomial", "step", "cosine"] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    power: float = Field(0.9, gt=0, description="of the polynomial schedule")
    step_epochs: int = Field(10, ge=1, description="of the step schedule: lr times step_factor every so many")
    step_factor: float = Field(0.1, gt=0, le=1)
    loss: LossName = Field(
        "cross_entropy",
        description="cross_entropy, dice, focal, or two joined by +; gscnn; of forecasts rain, plain_rain",
    )
    class_weights: Literal["none", "median", "log"] = Field(
        "none", description="median frequency, or 1/ln(c+p)"
    )
    log_offset: float = Field(1.10, gt=1, description="c of 1/ln(c+p): the rarest class weighs 1/ln(c)")
    augment: tuple[Literal["flip", "turn", "scale", "shift", "noise", "jitter", "light", "blur"], ...] = (
        "flip",
        "turn",
    )
    rare_share: float = Field(0.0, ge=0, le=1, description="share of windows drawn where a rare class is")
    empty_share: float = Field(1.0, ge=0, le=1, description="largest share of windows with one class only")
    init: str | None = Field(
        None, description="run whose weights to start from; what does not fit is left out"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 on a GPU")
    compile: bool = Field(
        False, description="let the planner compile blocks where that is faster; compiling takes minutes"
    )
    fuse: bool = Field(
        True, description="on a GPU, batch norm and ReLU as one operation: faster, last digits may differ"
    )
    graph: bool = Field(
        True,
        description="on a GPU, capture a step as one CUDA graph where that is no slower than launching its kernels",
    )
    early_stop_epochs: int | None = Field(
        None, ge=1, description="stop after so many epochs without a better score"
    )
    max_minutes: float | None = Field(
        None,
        gt=0,
        description="stop after so many minutes, shared among phases as epochs are; poly and cosine follow the clock",
    )
    checkpoint_steps: int | None = Field(None, ge=1, description="also save every so many steps")
    workers: int = Field(
        2, ge=1, description="threads, or for a GPU processes, that read and prepare windows"
    )
    mlflow: str | None = Field(
        None, description="log with MLflow, too: a folder such as mlruns, or the address of a server"
    )
    phases: tuple[Phase, ...] = ()

    @property
    def window_px(self) -> tuple[int, int]:
        """Height and width of a training window."""
        return sides_of(self.tile_px)

    def all_phases(self) -> tuple[Phase, ...]:
        """Return the phases with every blank filled in; plain training has one."""
        blanks = {"epochs": self.epochs, "lr": self.lr, "log_offset": self.log_offset}
        phases = self.phases or (Phase(),)
        filled = (
            phase.model_copy(update={k: v for k, v in blanks.items() if getattr(phase, k) is None})
            for phase in phases
        )
        return tuple(phase.model_copy(update={"lr": self._for_batch(phase.lr)}) for phase in filled)

    def _for_batch(self, lr: float | None) -> float:
        """Return the rate of this batch, where `lr` is meant for another."""
        assert lr is not None
        times = self.batch / (self.lr_for_batch or self.batch)
        return lr * (times if self.lr_rule == "linear" else times**0.5)
