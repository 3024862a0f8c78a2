"""Memory that runs out on one rank: all put the step back, and repeat it by one tighter plan."""

from __future__ import annotations

from typing import Any

import torch
from tests.ranks.gang import Gang
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.ranks import ALONE, World
from outsize.strategies.replicate import look_across, replicated, share_out
from outsize.strategies.steps.recover import Shortage, recovering

_NUM, _STEPS = 4, 4


def train(world: World, fails_at: int | None, when: str = "forward") -> dict[str, Any]:
    """Train a net with batch norm; memory runs out on the last rank in one of its steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Conv2d(4, 1, 1)).double()
    look_across(net, share_out(world, _NUM))
    mine = share_out(world, _NUM).mine
    images = torch.randn(_NUM, 2, 8, 8, dtype=torch.float64)[mine]
    batch = Batch(images, images[:, 0] > 9, ClassRasters(images[:, 0]), {})
    number, is_tight, found = 0, False, []

    def plain(batch: Batch, *, last: bool) -> dict[str, Tensor]:
        fails = number == fails_at and not is_tight and world.rank == world.size - 1
        if fails and when == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has ...")
        share = net(batch.images).square().sum() / (_NUM * 36)
        share.backward()
        if fails:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has ...")
        return {"loss": share.detach()}

    def tighten(shortage: Shortage) -> Any:
        nonlocal is_tight
        is_tight = True
        found.append(shortage.message)
        return replicated(plain, net, world)

    step = recovering(replicated(plain, net, world), net, tighten, world=world)
    losses = []
    for number in range(_STEPS):
        torch.manual_seed(100 + number)
        losses.append(float(step(batch, last=True)["loss"]))
        with torch.no_grad():
            for each in net.parameters():
                assert each.grad is not None
                each.sub_(0.1 * each.grad)
                each.grad = None
    return {"losses": losses, "found": found, "weights": [*map(torch.clone, net.state_dict().values())]}


def test_all_ranks_repeat_the_step_that_one_could_not_do(gang: Gang) -> None:
    alone, undisturbed = train(ALONE, None), gang.run(3, train, None)
    for when in ("forward", "backward"):
        for each, plain in zip(gang.run(3, train, 2, when), undisturbed, strict=True):
            assert len(each["found"]) == 1
            assert "out of memory" in each["found"][0]
            assert each["losses"] == plain["losses"]
            assert all(map(torch.equal, each["weights"], plain["weights"]))
            for one, other in zip(each["weights"], alone["weights"], strict=True):
                assert one.allclose(other, rtol=1e-12, atol=1e-12)
