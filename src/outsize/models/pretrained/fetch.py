"""Fetches pretrained weights of encoders where there is a network, and says why not where there is none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PATIENCE_S = 5.0


def library() -> Any:
    """Import segmentation-models-pytorch, which takes seconds."""
    import segmentation_models_pytorch  # type: ignore[import-untyped]

    return segmentation_models_pytorch


def pretrained_names(encoder: str) -> tuple[str, ...]:
    """List the pretrained weights that an encoder of segmentation-models-pytorch is offered with."""
    import timm

    if encoder.startswith("tu-"):
        return ("imagenet",) if timm.models.is_model_pretrained(encoder.removeprefix("tu-")) else ()
    settings: dict[str, Any] = library().encoders.encoders[encoder]["pretrained_settings"]
    return tuple(settings)


def download(encoder: str, weights: str) -> tuple[dict[str, Tensor] | None, str]:
    """Return an encoder's weights for red, green, blue, from the cache or the network; or None, and why."""
    # The library asks six times with growing pauses before it gives up: half a minute to learn of no network.
    why_not = _why_unreachable()
    if why_not and not _is_cached(encoder, weights):
        return None, why_not
    try:
        with torch.random.fork_rng(devices=()):
            donor = library().encoders.get_encoder(
                encoder, in_channels=3, weights=True if encoder.startswith("tu-") else weights
            )
    except OSError as error:  # of the hub and of the network alike
        return None, _first_line(error)
    return dict(donor.state_dict()), ""


def _why_unreachable() -> str:
    import huggingface_hub

    try:
        # its own session: it knows of proxies, mirrors and the switch for working offline
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=_PATIENCE_S)
    except _network_errors() as error:
        return _first_line(error) or type(error).__name__
    return ""


def _network_errors() -> tuple[type[Exception], ...]:
    """Return the family of errors that a request may end in; which library raises them differs by version."""
    from huggingface_hub.errors import HfHubHTTPError

    families = [
        each for each in HfHubHTTPError.__mro__ if issubclass(each, Exception) and each is not Exception
    ]
    return (OSError, *families)


def _is_cached(encoder: str, weights: str) -> bool:
    import huggingface_hub
    import timm

    if encoder.startswith("tu-"):
        configuration = timm.models.get_pretrained_cfg(encoder.removeprefix("tu-"))
        place, revision = getattr(configuration, "hf_hub_id", None), None
    else:
        settings = library().encoders.encoders[encoder]["pretrained_settings"][weights]
        place, revision = settings["repo_id"], settings["revision"]
    if not place:
        return False
    cached = huggingface_hub.try_to_load_from_cache(place, "model.safetensors", revision=revision)
    return isinstance(cached, str)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""
