"""Damaged files: seeded changes of bytes, and of values in JSON."""

from __future__ import annotations

import copy
import json

from gtrace.core.base import json_fields

VALUES = [
    None, True, -1, 0, 3, 2**40, 2**70, 0.5, float("nan"), "", "a", "f32[2,3]", "f32[9,9]", "cuda:0", "F6_E2M3", [], {},
    [1], [[1]], {"a": 1}, {"value": 1}, {"list": [0]}, "f32[4,4]{x|x=99999999999}", "f32[4,4]{x,-,-|x=2}", "../x.pt2",
]  # fmt: skip


def of_bytes(rng, data):
    """Return bytes of which one is another, or some are missing or too many, or the end is missing."""
    k = rng.randrange(len(data))
    some = rng.randbytes(rng.randrange(1, 9))
    return rng.choice(
        [data[:k] + some[:1] + data[k + 1 :], data[:k] + data[k + 9 :], data[:k] + some + data[k:], data[:k]]
    )


def of_json(rng, text, checksum):
    """Return JSON of which one value is another one or missing; with `checksum` it fits again."""
    data = json.loads(text)
    data.pop("checksum", None)
    path = rng.choice([path for path in _paths(data) if path])
    node = data
    for key in path[:-1]:
        node = node[key]
    key, kind = path[-1], rng.randrange(3)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node[key], str) and node[key]:
        k = rng.randrange(len(node[key]))
        node[key] = node[key][:k] + rng.choice("0123[]{}|=,-@.fiax~") + node[key][k + rng.randrange(2) :]
    else:
        node[key] = copy.deepcopy(rng.choice(VALUES))
    return json.dumps(json_fields.with_checksum(data) if checksum else data).encode()


def _paths(node, path=()):
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from _paths(value, (*path, key))
