"""Facts as facts.json holds them."""

from __future__ import annotations

import json

from outsize.plan.facts import Facts, Machine, WindowFacts
from outsize.tiles.halo import Halo, Obstacle, Reach


def test_json_form_holds_machine_window_and_halo() -> None:
    machine = Machine("cpu", "a machine", 8, 4, 2, 4)
    halo = Halo(Reach(3, 2), Reach(1, 0), 4, (Obstacle("pool", "mean", "looks everywhere"),))
    form = json.loads(json.dumps(Facts(machine, WindowFacts(64, 10, 1.5, 4.5, 30, "traced"), halo).as_dict()))
    assert form["machine"]["num_cores"] == 2
    assert form["window"]["train_bytes_per_px"] == 4.5
    assert form["halo"]["rows"] == {"before_px": 3, "after_px": 2}
    assert form["halo"]["obstacles"][0]["module"] == "pool"
