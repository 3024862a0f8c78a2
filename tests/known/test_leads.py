"""Names of leads."""

from __future__ import annotations

from outsize.known.leads import lead_classes, lead_names, minutes


def test_names() -> None:
    assert (minutes(-90), minutes(0), minutes(2.5)) == ("-90 min", "now", "+2.5 min")
    assert lead_names(5, 3) == ("+5 min", "+10 min", "+15 min")


def test_classes_are_the_leads() -> None:
    classes = lead_classes({"num_out": 2, "step_minutes": 5})
    assert [(each["name"], each["value"]) for each in classes] == [("+5 min", 0), ("+10 min", 1)]
    assert len(lead_classes(None)) == 10
    assert len(lead_classes({"num_out": "many"})) == 10  # what is wrong is said elsewhere
