"""HTML as values: every text is escaped on its way in, so that nothing a user names can become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is HTML already; whatever is not Markup gets escaped."""

    __slots__ = ()


Part = str | int | float | None
_VOID = {"img", "meta", "line", "circle", "rect", "polyline", "path"}


def tag(name: str, /, *parts: Part | Iterable[Part], **attributes: Part) -> Markup:
    """Return an element; of attribute names, `_` at the end is dropped and others become `-`."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{shown}/>")
    return Markup(f"<{name}{shown}>{join(*parts)}</{name}>")


def join(*parts: Part | Iterable[Part]) -> Markup:
    """Put parts one after the other; None is nothing."""
    return Markup("".join(_flat(parts)))


def _flat(parts: Iterable[Part | Iterable[Part]]) -> Iterable[str]:
    for part in parts:
        if part is None:
            continue
        if isinstance(part, Markup):
            yield part
        elif isinstance(part, str | int | float):
            yield html.escape(str(part), quote=True)
        else:
            yield from _flat(part)


def table(heads: Iterable[Part], rows: Iterable[Iterable[Part]], *, class_: str = "") -> Markup:
    """Return a table that scrolls inside its box; the first column holds names, the others numbers, or words."""
    lines = [list(row) for row in rows]
    worded = [] if class_ else [_are_words(column) for column in zip(*lines, strict=False)]
    look = dict.fromkeys((number for number, words in enumerate(worded) if words and number), "name")
    head = [tag("th", each, scope="col", class_=look.get(number)) for number, each in enumerate(heads)]
    body = [
        tag(
            "tr",
            tag("th", first, scope="row"),
            [tag("td", each, class_=look.get(number)) for number, each in enumerate(others, start=1)],
        )
        for first, *others in lines
    ]
    drawn = tag("table", tag("thead", tag("tr", head)), tag("tbody", body), class_=class_ or None)
    return tag("div", drawn, class_="scroll")


def _are_words(column: Sequence[Part]) -> bool:
    """Whether a column holds words alone: numbers, and dashes for what is not known, stand at the right."""
    texts = [each for each in column if isinstance(each, str) and not isinstance(each, Markup)]
    return (
        len(texts) == len(column)
        and any(map(str.isalpha, "".join(each[:1] for each in texts)))
        and not any(each[:1].isdigit() or each[:1] in "+-±" for each in texts if each)
    )


def pairs(entries: Iterable[tuple[str, Part]]) -> Markup:
    """Return names with their values, what is unknown left out."""
    return tag(
        "dl", [join(tag("dt", name), tag("dd", value)) for name, value in entries if value is not None]
    )
