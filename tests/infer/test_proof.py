"""The proofs of tiles, one by one: what they say where they pass, fail or cannot be made."""

from __future__ import annotations

from outsize.infer.compare import Difference
from outsize.infer.proof import HaloProof, TiledProof, TrialProof, Unproven
from outsize.measure.trying.probe import ProbeResult
from outsize.tiles.halo import Halo, Obstacle, Reach


def test_tiles_fail_above_the_tolerance_where_the_plan_is_exact() -> None:
    far = Difference(largest=0.5, largest_logit=2.0, interior_tiles=0)
    proof = TiledProof("float32", far, 1e-5, exact=True)
    assert proof.failure == "float32 logits differ by 2.5e-01 of the largest"
    assert "(tolerance 1e-05): NO (the scene is small" in proof.text()
    assert not proof.as_dict()["passed"]
    assert TiledProof("float32", far, 1e-5, exact=False).failure == ""
    none = TiledProof("float32", Difference(float("nan"), 2.0, 1), 1e-5, exact=True)
    assert none.failure
    assert TiledProof("float64", Difference(0.0, 2.0, 1), 1e-11, exact=True).text().endswith(": yes")


def test_a_halo_fails_where_it_is_too_short_and_not_where_it_is_too_long() -> None:
    halo = Halo(Reach(1, 2), Reach(3, 4), 1)
    short, long = (
        HaloProof(halo, ProbeResult(sufficient, *[not sufficient] * 4)) for sufficient in (False, True)
    )
    assert short.failure == "pixels outside the derived halo reach the core"
    assert (long.failure, long.as_dict()) == ("", {"sufficient": True, "tight": False})
    assert long.text() == "halo: rows 1/2 px, columns 3/4 px; sufficient: yes, tight: no"


def test_a_trial_names_what_it_found() -> None:
    found = TrialProof((Obstacle("head", "trial", "it remembers"),))
    assert found.failure == "head (trial): it remembers"
    assert found.text().endswith("NO: head (trial): it remembers")
    assert found.as_dict()["found"] == [{"module": "head", "kind": "trial", "reason": "it remembers"}]
    assert TrialProof(()).text().endswith("the runs before: yes")


def test_what_is_not_proved_is_no_failure() -> None:
    proof = Unproven("halo", "the model does not run in float64")
    assert (proof.failure, proof.text()) == ("", "halo: not proved: the model does not run in float64")
