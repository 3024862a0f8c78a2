"""Layers that see all ranks: other kinds of batch norm and dropout than the plain ones."""

from __future__ import annotations

import pytest
import torch
from tests.ranks.gang import Gang
from timm.layers import BatchNormAct2d, DropPath
from torch import Tensor, nn

from outsize.ranks import ALONE, World
from outsize.strategies.replicate import look_across, share_out

_NUM = 5
_NETS = {
    "norm with an activation": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), BatchNormAct2d(4)),
    "norm of rows": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3 * 36)),
    "norm without weights": lambda: nn.BatchNorm2d(3, affine=False),
    "norm without statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False),
    "norm by the mean of all": lambda: nn.BatchNorm2d(3, momentum=None),
    "path": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), DropPath(0.5)),
    "channels last": lambda: nn.Sequential(nn.Dropout(0.4), nn.Conv2d(3, 4, 3)).to(
        memory_format=torch.channels_last
    ),
}


def answer(world: World, name: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return this rank's answers, the gradient of its pictures, and the buffers."""
    torch.manual_seed(0)
    net = _NETS[name]().double().train()
    look_across(net, share_out(world, _NUM))
    images = torch.randn(_NUM, 3, 6, 6, dtype=torch.float64)
    if name == "channels last":
        images = images.to(memory_format=torch.channels_last)
    images = images[share_out(world, _NUM).mine].requires_grad_()
    torch.manual_seed(7)
    results = net(images)
    (
        results * torch.arange(results[0].numel(), dtype=torch.float64).view(results[0].shape)
    ).square().sum().backward()
    assert images.grad is not None
    return results.detach(), images.grad, {key: each.clone() for key, each in net.named_buffers()}


@pytest.mark.parametrize("name", _NETS)
def test_answers_and_gradients_are_those_of_one_process(gang: Gang, name: str) -> None:
    results, gradient, buffers = answer(ALONE, name)
    parts = gang.run(2, answer, name)
    assert torch.cat([each[0] for each in parts]).allclose(results, rtol=1e-12, atol=1e-12)
    assert torch.cat([each[1] for each in parts]).allclose(gradient, rtol=1e-10, atol=1e-10)
    for part in parts:
        for key, each in part[2].items():
            assert each.allclose(buffers[key], rtol=1e-13), key


def asked_for_local(world: World) -> list[str]:
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5))
    look_across(net, share_out(world, 4), local_norm=True)
    return [type(each).__mro__[1].__name__ for each in net]


def test_norms_stay_apart_where_that_is_asked_for(gang: Gang) -> None:
    assert gang.run(2, asked_for_local)[0] == ["_BatchNorm", "Dropout"]
