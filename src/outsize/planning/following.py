"""The step of a published table, followed on shapes for any machine and batch; what is printed was followed beforehand.

published_steps.json    every step that is printed or measured, as it was followed    docs/published_steps.py
PublishedSteps          looks there; any other is followed now, which takes a second or more
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from outsize.job import Job, check_job
from outsize.report.published import Publication

if TYPE_CHECKING:
    from torch import nn

KNOWN = Path(__file__).with_name("published_steps.json")


class Followed(NamedTuple):
    """What following a step tells."""

    step_s: float
    device_s: float  # of it, the device by itself: the host may be slower
    saved_bytes: int  # for backward


class PublishedSteps:
    """A plain step of one published network, as eager torch runs it; the network is built once, if at all."""

    def __init__(self, table: Publication, known: Mapping[str, Followed] | None = None) -> None:
        self.job = _job(table.facts["step"])
        self._bands = int(table.facts["step"]["bands"])
        self._known = _all_known().get(table.name, {}) if known is None else known

    def of(self, gpu: str, batch: int, precision: str = "fp32") -> Followed:
        """Return what is known of a step, or what is found out now."""
        known = self._known.get(key_of(gpu, batch, precision))
        return self.follow(gpu, batch, precision) if known is None else known

    def copies_s(self, gpu: str, batch: int) -> float:
        """Return what copies of every saved tensor to the host and back take, one behind the other."""
        from outsize.plan.machines import find_machine

        link = find_machine(gpu).rates
        rate = link.crowded_bytes_per_s or link.to_host_bytes_per_s
        assert rate is not None  # every card of the catalogue has a link
        return 2 * self.of(gpu, batch).saved_bytes / rate

    def follow(self, gpu: str, batch: int, precision: str = "fp32") -> Followed:
        """Follow a step on shapes."""
        from outsize.plan.ways import plain
        from outsize.planning.jobs import train_task
        from outsize.planning.situation import situation_named
        from outsize.tiles.halo import Halo, Reach

        section = self.job.train.model_copy(update={"batch": batch, "precision": precision})
        job = self.job.model_copy(update={"train": section})
        where = situation_named(gpu, 1, section.precision)
        request = train_task(job, self._model, self._bands, Halo(Reach(0, 0), Reach(0, 0), 1), where)
        facts = request.step_of(batch, request.side_px)
        saved = {each.storage for each in facts.saved}
        saved_bytes = sum(
            each.size_bytes
            for each in facts.storages
            if each.index in saved and each.role in ("activation", "input")
        )
        alone = replace(request, host_op_s=0.0)
        return Followed(plain(request).step_s, plain(alone).step_s, saved_bytes)

    @cached_property
    def _model(self) -> nn.Module:
        from outsize.models import build_model

        section = self.job.model
        classes = len(self.job.data.classes)
        return build_model(
            section.name, num_classes=classes, in_channels=self._bands, **dict(section.options)
        )


def key_of(gpu: str, batch: int, precision: str = "fp32") -> str:
    """Return the name of a step in the file."""
    return f"{gpu} {batch} {precision}"


@cache
def _all_known() -> dict[str, dict[str, Followed]]:
    tree = json.loads(KNOWN.read_text(encoding="utf-8"))
    return {
        name: {key: Followed(*each) for key, each in steps.items()} for name, steps in tree["steps"].items()
    }


def _job(about: Mapping[str, Any]) -> Job:
    """Return a job of that step; it names no data, for none is read. Others ran theirs call by call."""
    classes = [{"name": f"class {number}", "value": number} for number in range(about["classes"])]
    tree = {"task": about["task"], "data": {**about.get("data", {}), "classes": classes}}
    train = {"graph": False, "fuse": False, **about["train"]}
    return check_job({**tree, "model": about["model"], "train": train}, "a published step")
