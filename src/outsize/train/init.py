"""Starts a training from another run's weights, also where its bands or classes differ, and lists what was kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from outsize.card import Card, load_checkpoint
from outsize.errors import ModelError, explain
from outsize.job import ClassSpec
from outsize.models import build_model, logits_of
from outsize.models.pretrained import Fitted, Remake, find_ends, fit_weights, match_bands, take


@dataclass(frozen=True)
class Init:
    """What a training began with, and what of the earlier model it is."""

    source: str
    weights: Fitted
    bands_kept: tuple[str, ...]
    bands_new: tuple[str, ...]
    bands_dropped: tuple[str, ...]
    classes_kept: tuple[str, ...]
    classes_new: tuple[str, ...]
    classes_dropped: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return what init.json holds."""
        return asdict(self)

    @property
    def lines(self) -> tuple[str, ...]:
        """A few lines for people."""
        return (
            f"started from {self.source}: {self.weights.summary}",
            _line("bands", self.bands_kept, self.bands_new, self.bands_dropped),
            _line("classes", self.classes_kept, self.classes_new, self.classes_dropped),
        )


def start_from(
    checkpoint: Path,
    model: nn.Module,
    *,
    name: str,
    options: dict[str, Any],
    bands: Sequence[str],
    classes: Sequence[ClassSpec],
) -> Init:
    """Fill a model, built from `name` and `options`, with what fits of a checkpoint.

    Bands that the earlier model did not know begin with zeros: with the others as they were, the first layer answers
    as it did. Classes that it did not know keep the random rows that the model was built with.
    """
    earlier, card = load_checkpoint(checkpoint)
    band_matches = _match_bands(card, bands, checkpoint)
    known_classes = [each.name for each in card.classes]
    wanted_classes = [each.name for each in classes]
    class_matches = tuple(
        known_classes.index(each) if each in known_classes else None for each in wanted_classes
    )
    plain = {key: value for key, value in options.items() if key not in ("weights", "logits")}
    known_logits, logits = logits_of(known_classes, card.options), logits_of(wanted_classes, options)
    logit_matches = tuple(known_logits.index(each) if each in known_logits else None for each in logits)

    def wider() -> nn.Module:
        return build_model(name, num_classes=len(logits) + 1, in_channels=len(bands) + 1, **plain)

    def kernels(given: Tensor, own: Tensor) -> Tensor | None:
        fits = given.shape[1] == len(card.bands) and given.shape[0] == own.shape[0]
        any_kept = any(match is not None for match in band_matches)
        return take(given, band_matches, axis=1) if fits and any_kept else None

    def rows(given: Tensor, own: Tensor) -> Tensor | None:
        # a head may have rows for what is no class, before the others, and several for each
        before = int(getattr(model, "num_background", 0))
        each = given.shape[0] // (len(known_logits) + before)
        matches = _rows(logit_matches, before, each)
        fits = given.shape[0] == each * (len(known_logits) + before) and given.shape[1:] == own.shape[1:]
        return take(given, matches, axis=0, like=own) if fits and len(matches) == len(own) else None

    ends = find_ends(model, wider)
    remakes: dict[str, Remake] = {**dict.fromkeys(ends.first, kernels), **dict.fromkeys(ends.heads, rows)}
    fitted = fit_weights(model, earlier.state_dict(), remakes)
    if not fitted.kept:
        needed, remedy = f"weights of {name}", f"set model.name = '{card.model}', or leave train.init out"
        raise ModelError(explain(f"{checkpoint} fits nothing of the model", card.model, needed, remedy))
    return Init(
        str(checkpoint),
        fitted,
        *_sorted_out(card.bands, bands, band_matches),
        *_sorted_out(known_classes, wanted_classes, class_matches),
    )


def _match_bands(card: Card, bands: Sequence[str], checkpoint: Path) -> tuple[int | None, ...]:
    """Go by name where both sides name all bands, and by number only where one side names none of as many."""
    if all(card.bands) and all(bands):
        return match_bands(card.bands, bands)
    if len(card.bands) != len(bands) or (any(card.bands) and any(bands)):
        found = ", ".join(name or "unnamed" for name in card.bands)
        needed = f"names for all bands, as there are {len(card.bands)} and {len(bands)} of them"
        remedy = "name them in data.bands, here and in the run to start from"
        raise ModelError(explain(f"bands of {checkpoint} cannot be matched", found, needed, remedy))
    return tuple(range(len(bands)))


def _rows(matches: Sequence[int | None], before: int, each: int) -> tuple[int | None, ...]:
    """Return which row of a head each row is, from which class each class is."""
    all_matches = (*range(before), *(None if match is None else match + before for match in matches))
    return tuple(
        None if match is None else match * each + row for match in all_matches for row in range(each)
    )


def _sorted_out(
    known: Sequence[str], wanted: Sequence[str], matches: Sequence[int | None]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    kept = tuple(each for each, match in zip(wanted, matches, strict=True) if match is not None)
    new = tuple(each for each, match in zip(wanted, matches, strict=True) if match is None)
    return kept, new, tuple(each for number, each in enumerate(known) if number not in matches)


def _line(what: str, kept: Sequence[str], new: Sequence[str], dropped: Sequence[str]) -> str:
    parts = (("kept", kept), ("new", new), ("dropped", dropped))
    listed = [f"{verb} {', '.join(each or 'unnamed' for each in names)}" for verb, names in parts if names]
    return f"{what}: {'; '.join(listed)}"
