"""The names of ``jax.ad_checkpoint``."""

from __future__ import annotations

from typing import Any

import attrs

import gtrace as gt
from gtrace.jax.adapt import namespace

checkpoint = gt.checkpoint
checkpoint_policies = gt.checkpoint_policies


class _Decision:
    """The decision of a policy about a value."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


Saveable, Recompute = _Decision("Saveable"), _Decision("Recompute")


@attrs.frozen
class Offloadable:
    """A policy's decision to move a value to another memory; it is kept where it is.

    Attributes:
        src, dst: names of memories.
    """

    src: str
    dst: str


def checkpoint_name(x: Any, name: str) -> Any:
    """Return the value: policies do not know names."""
    return x


__getattr__, __dir__ = namespace("jax.ad_checkpoint")
