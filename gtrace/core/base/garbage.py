"""Garbage collections after the import."""

from __future__ import annotations

import gc

from gtrace.core.base.mechanisms import FROZEN_IMPORTS


def freeze_imports(first: bool) -> None:
    """Move what was imported to the oldest generation, or the next collection of a young one looks through all of it.

    Args:
        first: whether the program has made nothing before, because torch came with gtrace. Then what was imported
            stays out of later collections too: each would take 150 ms.
    """
    if not FROZEN_IMPORTS.on or gc.get_freeze_count():
        return
    gc.freeze()
    FROZEN_IMPORTS.used()
    if not first:
        gc.unfreeze()
