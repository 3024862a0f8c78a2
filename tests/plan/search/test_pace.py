"""What a second of the device and a call of the host cost a step."""

from __future__ import annotations

import pytest

from outsize.plan.search.pace import HostAndDevice


def test_the_slower_side_is_the_dearer_one() -> None:
    device, host = HostAndDevice(2.0, 100, 0.01), HostAndDevice(1.0, 200, 0.01)
    assert device.extra_s(0.0, 50) == 0  # hidden
    assert host.extra_s(0.0, 50) == pytest.approx(0.5)
    assert device.extra_s(0.5, 0) == pytest.approx(0.5)
    assert host.extra_s(0.5, 0) == 0
    assert device.price_s(1.0, 0) > device.price_s(0.0, 100)
    assert host.price_s(1.0, 0) < host.price_s(0.0, 100)
    assert (device.delay_s(1.0, 10), host.delay_s(1.0, 10)) == pytest.approx((1.0, 0.1))


def test_calls_cost_nothing_in_a_capture_and_add_up_on_a_cpu() -> None:
    captured, cpu = HostAndDevice(1.0, 1000, 0.0), HostAndDevice(1.0, 100, 0.01, overlaps=False)
    assert captured.extra_s(0.25, 10**6) == 0.25
    assert cpu.extra_s(0.25, 100) == pytest.approx(1.25)
