"""Names of models, known without loading one: so `check` refuses a wrong name without torch."""

from __future__ import annotations

import difflib

from outsize.errors import ModelError, explain

MODEL_NAMES = ("erfnet", "gscnn", "maskrcnn", "unet", "wider_resnet38")
LIBRARY_PREFIX = "smp:"  # of a model of segmentation-models-pytorch, whose names only the library knows


def refuse_unknown_model(name: str) -> None:
    """Refuse a name that no model has; of a library's model only the form of its name is looked at."""
    form = f"{LIBRARY_PREFIX}ARCHITECTURE/ENCODER"
    if name in MODEL_NAMES:
        return
    if name.startswith(LIBRARY_PREFIX):
        architecture, _, encoder = name.removeprefix(LIBRARY_PREFIX).partition("/")
        if not architecture or not encoder:
            remedy = f"write e.g. {LIBRARY_PREFIX}{architecture or 'Unet'}/resnet18"
            raise ModelError(explain("model without an encoder", repr(name), form, remedy))
        return
    if "/" in name:
        remedy = f"did you mean '{LIBRARY_PREFIX}{name}'?"
    else:
        near = difflib.get_close_matches(name.lower(), MODEL_NAMES, n=1, cutoff=0.3)
        remedy = f"did you mean {near[0]!r}?" if near else "choose 'unet', for example"
    raise ModelError(
        explain("unknown model", repr(name), f"one of {', '.join(MODEL_NAMES)}, or {form}", remedy)
    )
