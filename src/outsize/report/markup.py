"""HTML as values: every text is escaped on its way in, so that nothing a user names can become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable


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
    """Return a table that scrolls inside its box; the first column holds names, the others numbers."""
    head = tag("thead", tag("tr", [tag("th", each, scope="col") for each in heads]))
    lines = []
    for row in rows:
        first, *others = row
        lines.append(tag("tr", tag("th", first, scope="row"), [tag("td", each) for each in others]))
    return tag("div", tag("table", head, tag("tbody", lines), class_=class_ or None), class_="scroll")


def pairs(entries: Iterable[tuple[str, Part]]) -> Markup:
    """Return names with their values, what is unknown left out."""
    return tag(
        "dl", [join(tag("dt", name), tag("dd", value)) for name, value in entries if value is not None]
    )
