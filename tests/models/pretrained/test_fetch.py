"""Pretrained weights: from the network or the cache, or the reason why not."""

import pytest
import segmentation_models_pytorch as smp
import torch

from outsize.models.pretrained import fetch as pretrained


def test_names() -> None:
    assert "imagenet" in pretrained.pretrained_names("resnet18")
    assert pretrained.pretrained_names("tu-resnet18") == ("imagenet",)


@pytest.mark.parametrize(("why_not", "cached"), [("", False), ("no route to host", True)])
@pytest.mark.parametrize("encoder", ["resnet18", "tu-resnet18"])
def test_weights_come_from_the_network_or_the_cache(
    monkeypatch: pytest.MonkeyPatch, encoder: str, why_not: str, cached: bool
) -> None:
    make, asked = smp.encoders.get_encoder, []

    def get_encoder(name: str, *, in_channels: int, weights: object) -> torch.nn.Module:
        asked.append((in_channels, weights))
        return make(name, in_channels=in_channels, weights=None)

    monkeypatch.setattr(smp.encoders, "get_encoder", get_encoder)
    monkeypatch.setattr(pretrained, "_why_unreachable", lambda: why_not)
    monkeypatch.setattr(pretrained, "_is_cached", lambda *_: cached)
    before = torch.random.get_rng_state()
    weights, reason = pretrained.download(encoder, "imagenet")
    assert weights is not None
    assert len(weights) > 100
    assert reason == ""
    assert asked == [(3, True if encoder.startswith("tu-") else "imagenet")]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_network_that_fails_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("reset by peer\nand more")

    monkeypatch.setattr(pretrained, "_why_unreachable", lambda: "")
    monkeypatch.setattr(smp.encoders, "get_encoder", fail)
    assert pretrained.download("resnet18", "imagenet") == (None, "reset by peer")


def test_working_offline_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    class Session:
        def head(self, *_: object, **__: object) -> None:
            raise huggingface_hub.errors.OfflineModeIsEnabled("offline")

    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    assert pretrained._why_unreachable() == "offline"
    assert not pretrained._is_cached("tu-resnet18", "imagenet")
    assert not pretrained._is_cached("resnet18", "imagenet")
