"""No module whose tiles differ from the whole is believed; of those whose tiles do not, few are refused."""

from __future__ import annotations

import pytest
import torch
from tests.measure.banded import BANDED
from tests.measure.nets import BANDS
from tests.measure.sly import SLY
from tests.measure.sound import SOUND
from tests.measure.unsound import GROUPS
from torch import Tensor, nn

from outsize.errors import TraceError
from outsize.infer.compare import tiled_difference
from outsize.measure.trying import derive, differing_at, try_tiling
from outsize.tiles.halo import Halo, Obstacle, Reach

UNSOUND = SLY | {
    f"{group}: {name}": make
    for group, table in {**GROUPS, "band": BANDED}.items()
    for name, make in table.items()
}
# Exact, and refused all the same.
NEEDLESS = {
    "samples one by one": "as many operations as samples: by the graph they could see one another",
    "seeded noise of a fixed shape": "the graph does not say that the generator is made again in each run",
}
# One or two of each kind; all of them take minutes.
QUICK = (
    "size: branch on odd sides",
    "size: divided by the width",
    "size: halves averaged",
    "place: running sum of ones",
    "place: border assigned",
    "batch: less the mean",
    "history: last picture",
    "history: after a hundred runs",
    "history: running buffer used before",
    "noise: noise of a fixed shape",
    "padding: reflected to 32",
    "history: an attribute of a function",
    "place: the middle enlarged",
    "band: another row of a table",
    "band: both layers, another answer",
    "band: a tensor of one number",
    "band: channels shuffled",
    "band: another weight",
)
QUICK_SOUND = (
    "a skip of zero channels",
    "zeros behind to 8",
    "windows",
    "by einsum",
    "cropped and padded",
    "max-unpool",
    "nearest entries of a codebook",
    "ranges looked up",
    "Fourier in squares of 8",
)
# Wrong by what the border of a tile does to a constant, which reaches less far than a wide halo, and beyond none.
EDGES = (
    "place: ones averaged at the border",
    "place: ones convolved",
    "place: ones padded",
    "place: ones padded and pooled",
    "place: border assigned",
    "place: zeros joined to ones",
    "place: row assigned",
    "place: columns assigned by index",
)
NARROW, WIDE = (Halo(Reach(each, each), Reach(each, each), 2) for each in (0, 24))
LARGE, SMALL = (158, 190), (84, 84)


def verdict(model: nn.Module) -> tuple[Halo | None, tuple[Obstacle, ...]]:
    """Say what `outsize.predict` would find for a scene that is cut."""
    try:
        halo = derive(model, BANDS)
    except TraceError as error:
        return None, (Obstacle("", "trace", str(error)),)
    small, large = ([-(-side // halo.stride_px) * halo.stride_px for side in size] for size in (SMALL, LARGE))
    if halo.obstacles:
        return halo, halo.obstacles
    shapes = [(3, BANDS, *small), (2, BANDS, *small), (1, BANDS, *large)]
    differing = differing_at(model, shapes, halo.stride_px)
    return halo, (differing,) if differing else try_tiling(model, halo, BANDS)


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    output = model(inputs)
    assert isinstance(output, Tensor)
    return output


def truly_differs(name: str) -> bool:
    """Compare by numbers alone: tiles with a wide border, samples together and alone, one picture again and again."""
    model, fresh = _made(name), _made(name)
    scene = torch.randn(1, BANDS, *LARGE, dtype=torch.float64)
    both = torch.cat([scene, scene.flip(-1)] * 5)[..., :48, :60] * torch.arange(1, 11).view(-1, 1, 1, 1)
    with torch.inference_mode():
        if tiled_difference(model, scene, 36, NARROW if name in EDGES else WIDE).relative > 1e-9:
            return True
        together, alone = _logits(model, both), _logits(model, both[3:4])
        again = [together[3:4], _logits(fresh, both[3:4]), *(_logits(model, both[3:4]) for _ in range(120))]
        return not all(torch.allclose(each, alone, rtol=1e-9, atol=1e-9) for each in again)


def _made(name: str) -> nn.Module:
    torch.manual_seed(1)
    return UNSOUND[name]().double().eval()


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in UNSOUND]
)
def test_whatever_differs_is_refused(name: str) -> None:
    torch.manual_seed(0)
    assert truly_differs(name)
    _, obstacles = verdict(UNSOUND[name]().eval())
    assert obstacles, "believed, and wrong"


@pytest.mark.parametrize(
    "name", [name if name in QUICK_SOUND else pytest.param(name, marks=pytest.mark.long) for name in SOUND]
)
def test_what_does_not_differ_is_believed(name: str) -> None:
    torch.manual_seed(0)
    halo, obstacles = verdict(SOUND[name]().eval())
    assert bool(obstacles) == (name in NEEDLESS), [str(each) for each in obstacles]
    if halo is not None:
        scene = torch.randn(1, BANDS, *(-(-side // halo.stride_px) * halo.stride_px for side in (111, 151)))
        core_px = -(-24 // halo.stride_px) * halo.stride_px
        model = SOUND[name]().double().eval()
        assert tiled_difference(model, scene.double(), core_px, halo).relative <= 1e-11


def test_there_are_many_and_few_are_refused_without_need() -> None:
    assert len(UNSOUND) + len(SOUND) >= 320
    assert len(NEEDLESS) <= 5
