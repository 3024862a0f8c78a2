"""Spoils bytes, trees and names, by a seeded generator."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

ODD_TEXTS = (
    *(
        "",
        " ",
        "\0",
        "a\nb",
        "a;b",
        "\x1b[31m",
        "\x07\x01",
        "\u202eabc",
        "\u2028",
        "a\u0301",
        "\U0001f6f0",
        "x" * 5000,
    ),
    *("{stem}", "{", "}", "{name.__class__}", "{0}", "%s", "../../../etc/passwd", "/etc/passwd"),
    *("/vsicurl/http://127.0.0.1:9/a", "<a>", "&amp;", "]]>", "'", '"', "nan", "-1", "1e999", "*", "[", "**"),
    *("?" * 300, "NaN", "null", ".", "..", "a" * 300),
)
ODD_NUMBERS = (
    *(0, -1, 1, 2, 255, 256, 65536, 2**31, -(2**31), 2**63, -(2**63), 2**64, 10**30, 10**400),
    *(0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
)
ODD_NAMES = (
    *(
        b"a;b",
        b"a\nb",
        b"a b",
        b"a\xff\xfeb",
        "\u2603".encode(),
        b"a'\"b",
        b"-a",
        b"a!b",
        b"a?b=c&d",
        b"a[1]",
    ),
    *(b"{a}", b"a" * 200),
)


def bytes_of(rng: random.Random, data: bytes) -> bytes:
    """Spoil bytes once or a few times."""
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        data = _spoilt(rng, data)
    return data


def _spoilt(rng: random.Random, data: bytes) -> bytes:  # noqa: PLR0911 (one for each way)
    if not data:
        return rng.randbytes(9)
    # headers matter most, and lie at the start
    at = (
        min(rng.randrange(len(data)), rng.randrange(len(data)))
        if rng.random() < 0.7
        else rng.randrange(len(data))
    )
    end = min(len(data), at + rng.choice((1, 2, 4, 8, 64)))
    kind = rng.randrange(9)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + rng.randbytes(end - at) + data[end:]
    if kind == 3:
        return data[:at] + data[end:]
    if kind == 4:
        return data[:end] + data[at:]
    if kind == 5:
        number = rng.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFF, rng.getrandbits(32)))
        at = at // 4 * 4
        return data[:at] + struct.pack("<I", number) + data[at + 4 :]
    if kind == 6:
        return data[:at] + bytes(end - at) + data[end:]
    if kind == 7:
        return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]
    number = rng.choice((float("nan"), float("inf"), 1e300, -1e300, 5e-324))
    return data[:at] + struct.pack("<d", number) + data[at + 8 :]


def tree_of(rng: random.Random, tree: Any) -> Any:
    """Spoil one or a few values of a tree of dicts and lists; returns another one."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return odd_value(rng)
        holder, key = rng.choice(places)
        kind = rng.randrange(10)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice(ODD_TEXTS)] = holder.pop(key)
        elif kind == 2:
            holder[key] = [holder[key]]
        elif kind == 3 and isinstance(holder[key], list):
            holder[key] = holder[key] * rng.choice((0, 2, 30))
        elif kind == 4 and isinstance(holder[key], dict | list):
            holder[key] = rng.choice(([], {}, [[]], [None]))
        elif kind == 5 and isinstance(holder[key], str):
            holder[key] = holder[key] + rng.choice(ODD_TEXTS)
        elif kind == 6 and isinstance(holder[key], int | float):
            holder[key] = rng.choice(ODD_NUMBERS)
        else:
            holder[key] = odd_value(rng)
    return tree


def odd_value(rng: random.Random) -> Any:
    """Return a value of any type."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(ODD_TEXTS)
    if kind < 5:
        return rng.choice(ODD_NUMBERS)
    if kind == 5:
        deep: Any = 1
        for _ in range(rng.choice((3, 100))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    return rng.choice((None, True, False, [], {}, [1, "a", None], {"a": {"b": 1}}))


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found, left = [], [tree]
    while left:
        each = left.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
        for key in keys:
            found.append((each, key))
            left.append(each[key])
    return found
