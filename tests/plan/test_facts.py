"""Facts as facts.json holds them."""

from __future__ import annotations

import json

from outsize.plan.facts import Facts, Machine, WindowFacts
from outsize.tiles.halo import Halo, Obstacle, Reach


def test_json_form_holds_machine_window_and_halo() -> None:
    machine = Machine("cpu", "a machine", 8, 4, 2, 4)
    halo = Halo(Reach(3, 2), Reach(1, 0), 4, (Obstacle("pool", "mean", "looks everywhere"),))
    form = json.loads(
        json.dumps(Facts(machine, WindowFacts(64, 10, 2, 1.5, 4.5, None, None), halo).as_dict())
    )
    assert form["machine"]["num_cores"] == 2
    assert form["window"]["predict_flops_per_px"] == 4.5
    assert form["halo"]["rows"] == {"before_px": 3, "after_px": 2}
    assert form["halo"]["obstacles"][0]["module"] == "pool"


def test_a_window_needs_what_is_fixed_and_what_grows() -> None:
    window = WindowFacts(64, 10, 2, 1.5, 4.5, 0.25, 0.5)
    assert window.peak_bytes(100) == 10 + 2 + 150
    assert window.seconds(100) == 50.25
    assert WindowFacts(64, 10, 2, 1.5, 4.5, None, None).seconds(100) is None


def test_no_window_is_faster_than_the_host_can_call_it() -> None:
    window = WindowFacts(64, 10, 2, 1.5, 4.5, 0.25, 0.5, host_s=3.0)
    assert window.seconds(1) == 3.0
    assert window.seconds(100) == 50.25
