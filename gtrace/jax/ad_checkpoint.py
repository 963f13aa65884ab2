"""The names of ``jax.ad_checkpoint``."""

from __future__ import annotations

from typing import Any

import gtrace as gt
from gtrace.jax.adapt import namespace

checkpoint = gt.checkpoint
checkpoint_policies = gt.checkpoint_policies


def checkpoint_name(x: Any, name: str) -> Any:
    """Return the value: policies do not know names."""
    return x


__getattr__, __dir__ = namespace("jax.ad_checkpoint")
