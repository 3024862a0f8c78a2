"""Small chains of layers, at random and by hand."""

from __future__ import annotations

from hypothesis import strategies as st

from outsize.plan.partition import Chain, ChainLayer, Stream


def plain(times: list[float], *, sizes: list[int] | None = None, saved: int = 0, state: int = 0) -> Chain:
    """Return layers in a row; backward takes twice as long as forward."""
    layers = [
        ChainLayer(f"layer{at}", each, 2 * each, 0, 0, saved, 0, state) for at, each in enumerate(times)
    ]
    sizes = sizes or [0] * (len(times) - 1)
    streams = [Stream(at, (at + 1,), size) for at, size in enumerate(sizes)]
    return Chain(tuple(layers), tuple(streams))


@st.composite
def chains(draw: st.DrawFn, most: int = 8) -> Chain:
    """Draw a chain with skips."""
    num = draw(st.integers(3, most))
    small = st.integers(0, 9)
    layers = [
        ChainLayer(
            f"layer{at}", draw(small) + 1, draw(small) + 1, draw(small), 0, draw(small), 0, draw(small)
        )
        for at in range(num)
    ]
    streams = [Stream(at, (at + 1,), draw(small)) for at in range(num - 1)]
    for _ in range(draw(st.integers(0, 3))):
        made = draw(st.integers(0, num - 3))
        streams.append(Stream(made, (draw(st.integers(made + 2, num - 1)),), draw(small)))
    return Chain(tuple(layers), tuple(streams))
