"""Takes up what was planned before of the same job by the same code on the same machine, where it still fits there."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from outsize.job import Job
from outsize.plan.effort import is_put_off
from outsize.plan.facts import Facts, facts_from_dict
from outsize.plan.plan import Fuse, Plan, plan_from_dict
from outsize.planning.situation import Situation, host_bytes
from outsize.tiles.halo import Halo, halo_from_dict

if TYPE_CHECKING:
    import torch
    from torch import nn

    from outsize.planning.jobs.groundwork import Groundwork

_LIBRARIES = ("torch", "torchvision", "timm", "segmentation-models-pytorch")  # that models are made of
_MORE = 1.1  # memory than there was: a plan may be better now
_SECTIONS = ("task", "seed", "model", "train", "limits")


@dataclass(frozen=True)
class KeptPlans:
    """Plans of a job, and all that was decided on the way to them."""

    where: Situation
    facts: Facts
    train: Plan
    predict: Plan
    resident_bytes: int


def recall_halo(job: Job, bands: Sequence[str], model: nn.Module, find: Any) -> Halo:
    """Return how far the model of a job looks, as was found before, or find it now: it takes seconds."""
    import torch

    from outsize.measure.remembered import key_of, recall_or_make

    name = f"halo-{key_of(_about_model(job, bands))}.json"
    found: Halo = recall_or_make(
        name, torch.device("cpu"), read=halo_from_dict, make=lambda: find(model, len(bands))
    )
    return found


def recall(job: Job, ground: Groundwork, where: Situation) -> KeptPlans | None:
    """Return what was planned before, if it would be planned so again; None: it must be planned."""
    from outsize.measure.remembered import recall as recall_file

    if where.device is None or job.train.compile:  # compiled blocks have figures of their own
        return None
    kept = recall_file(_file_name(job, ground, where, where.device), lambda tree: _read(tree, where))
    if kept is None or not _still_holds(kept, job) or not _is_as_learnt(job, ground, kept):
        return None
    return kept


def keep(job: Job, ground: Groundwork, kept: KeptPlans) -> None:
    """Remember plans for the next time, unless something was put off to it, or others used the device meanwhile."""
    from outsize.measure.remembered import remember
    from outsize.measure.shared import is_shared

    where = kept.where
    device = where.device
    if device is None or job.train.compile or is_put_off(kept.train, where.note):
        return
    if where.kind == "cuda" and (where.learnt is None or is_shared(device)):
        return
    tree = {
        "facts": asdict(kept.facts),
        "train": kept.train.as_dict(),
        "predict": kept.predict.as_dict(),
        "resident_bytes": kept.resident_bytes,
        "fuse": None if where.fuse is None else asdict(where.fuse),
        "pages": where.pages,
        "note": where.note,
    }
    remember(_file_name(job, ground, where, device), tree)


def _read(tree: Any, where: Situation) -> KeptPlans | None:
    """Return what a file holds, seen from the machine as it is now; None where it makes no sense."""
    facts = facts_from_dict(tree["facts"])
    train, predict = plan_from_dict(tree["train"]), plan_from_dict(tree["predict"])
    resident_bytes, note, pages = tree["resident_bytes"], tree["note"], tree["pages"]
    fuse = None if tree["fuse"] is None else _fuse(tree["fuse"])
    numbers = [train.peak_bytes, predict.peak_bytes, train.limit_bytes, predict.limit_bytes, resident_bytes]
    sound = all(type(each) is int and each >= 0 for each in numbers)
    sound &= type(note) is str and type(pages) is bool and predict.tiles is not None
    sound &= (train.purpose, predict.purpose) == ("train", "predict")
    sound &= all(each is None or 0 <= each < math.inf for each in (train.step_s, predict.step_s))
    if not sound:
        return None
    machine = replace(where.machine, usable_share=facts.machine.usable_share)
    now = replace(where, machine=machine, fuse=fuse, pages=pages, note=note, learnt=facts.learnt)
    return KeptPlans(now, replace(facts, machine=machine), train, predict, resident_bytes)


def _fuse(tree: dict[str, Any]) -> Fuse:
    shifts = tuple((join, layer) for join, layer in tree["shifts"])
    return Fuse(**{**{name: tuple(paths) for name, paths in tree.items()}, "shifts": shifts})


def _still_holds(kept: KeptPlans, job: Job) -> bool:
    """Whether plans fit what is free now, and not so much more is free that others might be better."""
    from outsize.plan.limits import limit_of, usable_bytes

    machine, plans = kept.where.machine, (kept.train, kept.predict)
    limit_bytes, room_bytes = limit_of(machine, job.limits), usable_bytes(machine, job.limits)
    if any(limit_bytes > _MORE * each.limit_bytes for each in plans):
        return False
    if kept.train.is_tight and (
        limit_bytes < kept.train.limit_bytes
        or host_bytes(job.limits.host_memory, kept.where) < kept.train.hosted_bytes
    ):
        return False
    return all(each.paged or each.peak_bytes <= room_bytes for each in plans)


def _is_as_learnt(job: Job, ground: Groundwork, kept: KeptPlans) -> bool:
    """Whether what a real step taught is still what is remembered of it: a shortage of memory teaches more."""
    from outsize.planning.trying import remembered_lesson

    if kept.where.kind == "cpu":
        return True
    return remembered_lesson(job, ground.model, len(ground.bands), kept.where) == kept.where.learnt


def _file_name(job: Job, ground: Groundwork, where: Situation, device: torch.device) -> str:
    from outsize.measure.remembered import fingerprint, key_of
    from outsize.planning.jobs.groundwork import count_steps

    sections = job.model_dump(mode="json", include=set(_SECTIONS))
    about = [*_about_model(job, ground.bands), json.dumps(sections, sort_keys=True, default=str)]
    about += [str(each) for each in (ground.largest_px, ground.most_objects, ground.halo)]
    about += [str(where.num_gpus), str(where.sharing)]
    about += [str(count_steps(job, ground.splits)), str(where.bf16), str(where.rates), str(device)]
    about += [
        fingerprint(device),
        platform.node(),
        str(os.cpu_count()),
        str(os.environ.get("PYTORCH_ALLOC_CONF")),
    ]
    return f"plan-{key_of(about)}.json"


def _about_model(job: Job, bands: Sequence[str]) -> list[str]:
    """List all that a model hangs on: what the job says of it, our code, the libraries that it is made of."""
    import outsize
    from outsize.measure.remembered import code_of

    about = [job.task, job.model.name, json.dumps(job.model.options, sort_keys=True, default=str)]
    about += [str(len(job.data.classes)), str(len(bands))]
    return [*about, *code_of(outsize), *(f"{name} {_version(name)}" for name in _LIBRARIES)]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
