"""One thing at a time is as it was, or told to be changed and put back."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch

from outsize.measure.state.kept import Items, Numbers, Rest, State, Variables, equal


@pytest.mark.parametrize("items", [[1, 2], {1, 2}, deque([1, 2], maxlen=2), bytearray(b"ab")])
def test_items(items: Any) -> None:
    was = list(items)
    place = Items(items)
    assert place.changes() == []
    items.clear()
    assert place.changes() == [None]
    place.put_back()
    assert list(items) == was


@pytest.mark.parametrize("held", [{"a": 1, "b": [2]}, OrderedDict(a=1, b=[2])])
def test_variables(held: Any) -> None:
    place = Variables(held, besides=["besides"])
    held["a"], held["c"], held["besides"] = 3, 4, 5
    inner = held.pop("b")
    assert set(place.changes()) == {"a", "b", "c"}
    place.put_back()
    assert held == {"a": 1, "b": [2], "besides": 5}
    assert held["b"] is inner


def test_numbers_that_are_none_are_no_change() -> None:
    tensor, array = torch.tensor([1.0, float("nan")]), np.array([1.0, float("nan")])
    assert Numbers(tensor).changes() == Numbers(array).changes() == []
    assert equal(tensor, tensor.clone())
    assert not equal(tensor, tensor.flip(0))


def test_a_tensor_of_another_size_or_elsewhere_is_put_back() -> None:
    tensor = torch.ones(2)
    place, memory = Numbers(tensor), tensor.data_ptr()
    tensor.data = torch.zeros(5)
    assert place.changes() == [None]
    place.put_back()
    assert tensor.tolist() == [1.0, 1.0]
    assert tensor.data_ptr() == memory


def test_tensors_without_memory_of_their_own_are_left() -> None:
    for tensor in (torch.eye(3).to_sparse(), torch.ones(3, device="meta")):
        place = Numbers(tensor)
        assert place.changes() == []
        place.put_back()


@pytest.mark.parametrize("make", [lambda: np.random.default_rng(1), lambda: torch.Generator().manual_seed(1)])
def test_generators(make: Any) -> None:
    generator = make()

    def draw() -> float:
        if isinstance(generator, torch.Generator):
            return torch.rand(1, generator=generator).item()
        return float(generator.random())

    place = State(generator)
    first = draw()
    assert place.changes() == [None]
    place.put_back()
    assert draw() == first


def test_iterators_are_told_of() -> None:
    for iterator in (itertools.count(), iter([1, 2, 3]), (each for each in (1, 2, 3))):
        place = Rest(iterator)
        assert place.changes() == []
        next(iterator)
        assert place.changes() == [None]
        place.put_back()
