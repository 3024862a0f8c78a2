"""What is drawn at random in a first run is given to the second."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from outsize.strategies.saved.draws import Draws

X = torch.linspace(-2, 3, 2 * 6 * 8 * 8).reshape(2, 6, 8, 8)


def _noisy(x: Tensor) -> Tensor:
    noise = torch.rand_like(x)
    noise += 1  # what was drawn is written to: the second run shall not see that
    return x * noise


RUNS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: functional.dropout(x, 0.4),
    "channels": lambda x: functional.dropout2d(x, 0.4),
    "alpha": lambda x: functional.alpha_dropout(x, 0.4, training=True),
    "as on a GPU": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "all dropped": lambda x: torch.native_dropout(x, 1.0, True)[0],
    "two": lambda x: functional.dropout(functional.dropout2d(x, 0.3), 0.3),
    "no draw": lambda x: x * 2,
    "noise": _noisy,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", RUNS)
def test_a_second_run_gives_the_same(name: str, dtype: torch.dtype) -> None:
    draws, x, run = Draws(), X.to(dtype), RUNS[name]
    with draws.kept():
        first = run(x)
    state = torch.get_rng_state()
    # a CPU rounds the scale as well, in a kernel that its own dropout never takes
    off = 2**-7 if (name, dtype) == ("as on a GPU", torch.bfloat16) else 0.0
    for _ in range(2):
        with draws.given():
            torch.testing.assert_close(run(x), first, rtol=off, atol=0.0)
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_are_those_of_the_first_run() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(
        nn.Conv2d(6, 6, 3), nn.Dropout(0.5), nn.Conv2d(6, 6, 3), nn.Dropout2d(0.5), nn.ReLU()
    )

    def gradients(*, again: bool) -> list[Tensor]:
        torch.manual_seed(1)
        block.zero_grad()
        draws = Draws()
        if again:
            contexts = (draws.kept(), draws.given())
            output = checkpoint(
                block, X, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: contexts
            )
        else:
            output = block(X)
        torch.manual_seed(2)  # what a generator would give now
        output.square().sum().backward()
        return [each.grad.clone() for each in block.parameters() if each.grad is not None]

    plain, kept = gradients(again=False), gradients(again=True)
    assert len(plain) == 4
    assert all(torch.equal(a, b) for a, b in zip(plain, kept, strict=True))


def test_a_mask_is_all_that_dropout_keeps() -> None:
    draws = Draws()
    with draws.kept():
        torch.native_dropout(X, 0.5, True)
    ((_, mask),) = draws._kept
    assert mask.dtype == torch.bool


def test_attention_that_drops_nothing_is_not_kept() -> None:
    draws, x = Draws(), torch.randn(1, 2, 8, 16)
    with draws.kept():
        functional.scaled_dot_product_attention(x, x, x)
        assert draws.is_empty
        first = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    assert not draws.is_empty
    with draws.given():
        functional.scaled_dot_product_attention(x, x, x)
        assert torch.equal(functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5), first)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: functional.rrelu(x, training=True),
        lambda x: torch.bernoulli(x.sigmoid(), out=torch.empty_like(x)),
    ],
    ids=["noise is written", "out"],
)
def test_what_writes_elsewhere_is_refused(run: Callable[[Tensor], Tensor]) -> None:
    before = X.clone()
    with pytest.raises(RuntimeError, match="cannot be given a second time"), Draws().kept():
        run(X)
    assert torch.equal(X, before)


def test_another_draw_than_the_first_time_is_an_error() -> None:
    draws = Draws()
    with draws.kept():
        torch.rand_like(X)
    with pytest.raises(RuntimeError, match=r"randn_like.*and drew by"), draws.given():
        torch.randn_like(X)
    with pytest.raises(RuntimeError, match="and drew by nothing"), draws.given():
        torch.stack([torch.rand_like(X), torch.rand_like(X)])
