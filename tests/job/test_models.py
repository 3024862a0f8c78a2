"""Names of models are known without a model, and are those that can be built."""

from __future__ import annotations

import inspect

import pytest

from outsize.errors import ModelError
from outsize.job.models import MODEL_NAMES, OF_OBJECTS, OPTIONS, refuse_unknown_model
from outsize.models import MODELS


def test_options_are_those_of_the_builders() -> None:
    for name, builder in MODELS.items():
        named = (
            getattr(getattr(builder, "func", builder), "option_names", None)
            or inspect.signature(builder).parameters
        )
        own = {each for each in named if each not in ("num_classes", "in_channels")}
        starts = {"weights"} if name in OF_OBJECTS else set()
        assert set(OPTIONS[name]) == own | starts, name


def test_they_are_those_that_can_be_built() -> None:
    assert sorted(MODEL_NAMES) == sorted(MODELS)


@pytest.mark.parametrize("name", [*MODEL_NAMES, "smp:Unet/resnet18", "smp:Unet/tu-resnet18"])
def test_a_name_that_may_be_right_passes(name: str) -> None:
    refuse_unknown_model(name)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("unett", "did you mean 'unet'?"),
        ("Unet/resnet18", "did you mean 'smp:Unet/resnet18'?"),
        ("smp:Unet", "write e.g. smp:Unet/resnet18"),
        ("smp:/resnet18", "write e.g. smp:Unet/resnet18"),
        ("qqq", "choose 'unet', for example"),
    ],
)
def test_a_wrong_name_is_refused(name: str, remedy: str) -> None:
    with pytest.raises(ModelError, match=f"found '{name}'") as caught:
        refuse_unknown_model(name)
    assert str(caught.value).endswith(remedy)
