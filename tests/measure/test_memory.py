"""Bytes that live at once, against counts by hand."""

from __future__ import annotations

import torch

from outsize.measure.memory import LiveBytes


def test_storages_count_while_they_live() -> None:
    with LiveBytes() as live:
        first = torch.zeros(100)
        view = first[10:].view(9, 10)
        second = first + 1
        assert live.now_bytes == 800
        del first
        assert live.now_bytes == 800  # the view holds the storage
        del view
        assert live.now_bytes == 400
        del second
    assert live.now_bytes == 0
    assert live.peak_bytes == 800


def test_a_freed_storage_is_forgotten_though_its_address_is_used_again() -> None:
    with LiveBytes() as live:
        for _ in range(50):
            kept = torch.zeros(1000)
            del kept
    assert live.peak_bytes == 4000
    assert live.now_bytes == 0


def test_what_was_there_before_is_not_counted() -> None:
    weight = torch.zeros(30, 20)
    with LiveBytes() as live:
        turned = weight.t()
        weight.add_(1)
        product = torch.zeros(5, 20) @ turned
    assert live.now_bytes == product.nbytes
    assert live.peak_bytes == 5 * 20 * 4 + product.nbytes
