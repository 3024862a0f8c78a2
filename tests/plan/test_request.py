"""What to ask a cluster for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outsize.plan.facts import Facts, Machine, WindowFacts
from outsize.plan.machines import find_machine
from outsize.plan.plan import Offload, Plan, Swap
from outsize.plan.request import Course, Workload, course_of, make_request
from outsize.plan.ways.paging import paged_room_bytes
from outsize.tiles.halo import Halo, Reach

GIB = 2**30
TRAIN = Plan("train", 8, 16 * GIB, 10 * GIB, True, (), step_s=0.5)
PREDICT = replace(TRAIN, purpose="predict", peak_bytes=2 * GIB, step_s=0.1)
FACTS = Facts(
    Machine("cuda:0", "a card", 16 * GIB, 15 * GIB, 8, 64 * GIB),
    WindowFacts(256, GIB // 8, 0, 100.0, 1000.0, 0.0, 1e-7),
    Halo(Reach(8, 8), Reach(8, 8), 16),
)
WORK = Workload(7200, 10, 5760, 8, 10_000_000, 100_000_000, 2, 4, GIB)


def test_the_fullest_moment_and_all_the_time_are_asked_for() -> None:
    found = make_request(TRAIN, PREDICT, FACTS, WORK, num_gpus=2, usable=0.8)
    assert found.gpus == 2
    assert found.gpu_gib == 13  # 10 / 0.8, and the context
    # an hour of steps, 20 s of pixels, and some to spare
    assert 1.3 < found.hours < 1.6
    assert found.disk_gib >= 1
    first, _, script = found.lines()
    assert first.startswith("ask for: 2 GPUs with 13 GiB each (planned for a card), ")
    assert "--gres=gpu:2 " in script  # and no type: clusters have names of their own for cards
    assert found.as_dict()["host_gib"] == found.host_gib


def test_what_a_plan_keeps_in_host_memory_is_asked_for_once_for_each_gpu() -> None:
    for num_gpus in (1, 2):
        plain = make_request(TRAIN, PREDICT, FACTS, WORK, num_gpus=num_gpus, usable=0.8)
        for kept in ({"swap": Swap((), 40 * GIB)}, {"offload": Offload((), 40 * GIB, GIB)}):
            found = make_request(replace(TRAIN, **kept), PREDICT, FACTS, WORK, num_gpus=num_gpus, usable=0.8)
            assert found.host_gib == plain.host_gib + 40 * num_gpus
            assert found.gpu_gib == plain.gpu_gib


def test_a_plan_that_fills_a_card_by_pages_asks_for_that_card() -> None:
    limit_bytes = find_machine("v100-16").usable_bytes
    full = replace(
        TRAIN, limit_bytes=limit_bytes, peak_bytes=int(paged_room_bytes(limit_bytes)), graph=True, paged=True
    )
    assert make_request(full, PREDICT, FACTS, WORK, num_gpus=1, usable=0.85).gpu_gib == 16
    # a prediction beside it leaves its share
    more = replace(PREDICT, peak_bytes=17 * GIB)
    assert make_request(full, more, FACTS, WORK, num_gpus=1, usable=0.85).gpu_gib == 21


def test_without_rates_the_time_is_not_made_up() -> None:
    found = make_request(replace(TRAIN, step_s=None), PREDICT, FACTS, WORK, num_gpus=1, usable=0.8)
    assert found.hours is None
    assert found.lines()[0].endswith(", time not known")
    assert "--time" not in "".join(found.lines())


def test_a_cpu_is_asked_for_no_gpu() -> None:
    found = make_request(TRAIN, PREDICT, FACTS, WORK, num_gpus=0, usable=0.8)
    assert found.gpu_gib == 0
    assert "GPU" not in found.lines()[0]
    assert "gres" not in found.lines()[2]
    # its samples are prepared by threads, two batches of 1 GiB ahead each, and pictures are not kept
    assert found.lines()[1] == "  host memory: 11.0 GiB for 1 process, 12.5 GiB for the steps themselves"
    assert found.host_gib > make_request(TRAIN, PREDICT, FACTS, WORK, num_gpus=1, usable=0.8).host_gib


def test_what_takes_less_than_an_hour_is_told_in_minutes() -> None:
    short = make_request(TRAIN, PREDICT, FACTS, replace(WORK, num_steps=90), num_gpus=1, usable=0.8)
    assert short.lines()[0].endswith(" 12 min")
    assert short.as_dict()["hours"] == pytest.approx((600 + 1.3 * (45 + 20)) / 3600)
    assert " 1.5 h" in make_request(TRAIN, PREDICT, FACTS, WORK, num_gpus=1, usable=0.8).lines()[0]


def test_a_job_of_a_moment_has_time_to_start() -> None:
    moment = replace(WORK, num_steps=1, num_epochs=1, validated_px=1, predicted_px=1)
    found = make_request(TRAIN, PREDICT, FACTS, moment, num_gpus=1, usable=0.8)
    assert found.lines()[-1].endswith("--time=00:11:00")
    assert " each" not in found.lines()[0]
    assert found.lines()[0].startswith("ask for: 1 GPU with 13 GiB (planned for a card), ")


def test_what_host_memory_is_for_adds_up() -> None:
    moving = replace(TRAIN, swap=Swap((), 40 * GIB))
    found = make_request(moving, PREDICT, FACTS, WORK, num_gpus=2, usable=0.8)
    parts = (
        "34.0 GiB for 10 processes",
        "2.0 GiB for decoded pictures",
        "80.0 GiB that the plan keeps there",
    )
    assert found.lines()[1] == f"  host memory: {', '.join(parts)}"
    assert found.host_gib == 34 + 2 + 80
    assert found.as_dict()["host"]["kept_bytes"] == 80 * GIB
    alone = make_request(TRAIN, PREDICT, FACTS, replace(WORK, num_workers=0), num_gpus=1, usable=0.8)
    assert alone.lines()[1] == "  host memory: 3.0 GiB for 1 process, 2.0 GiB for decoded pictures"


@pytest.mark.parametrize(
    ("total_s", "text"),
    [
        (0.3896, "390 ms"),
        (0.00423, "4.2 ms"),
        (42.4, "42 s"),
        (340, "5.7 min"),
        (4000, "1.1 h"),
        (4e5, "110 h"),
    ],
)
def test_a_rough_time_has_two_digits(total_s: float, text: str) -> None:
    assert Course(3, 1, total_s).text() == f"3 steps in 1 epoch: about {text} with validations"


def test_a_training_takes_its_steps_and_its_validations() -> None:
    course = course_of(TRAIN, FACTS, WORK)
    assert course.total_s == pytest.approx(7200 * 0.5 + 10 * 10_000_000 * 1e-7)
    assert course.text() == "7,200 steps in 10 epochs: about 1 h with validations"
    short = course_of(TRAIN, FACTS, replace(WORK, num_steps=660, epoch_samples=528))
    assert short.text() == "660 steps in 10 epochs: about 5.7 min with validations"
    ended = course_of(TRAIN, FACTS, WORK, max_minutes=5.5)
    assert ended.text().endswith(", ended by train.max_minutes after 5.5 min")
    fewer = course_of(TRAIN, FACTS, replace(WORK, epoch_samples=5765))
    assert fewer.text().startswith(
        "7,200 steps in 10 epochs of 5,760 samples (whole batches, where 5,765 are wanted): "
    )
    unknown = course_of(replace(TRAIN, step_s=None), FACTS, WORK)
    assert unknown.text() == "7,200 steps in 10 epochs: time not known"
    assert unknown.as_dict()["total_s"] is None
