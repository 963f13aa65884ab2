"""Garbage collections after the import."""

from __future__ import annotations

import gc

from gtrace.core.base.mechanisms import FROZEN_IMPORTS


def freeze_imports(first: bool) -> None:
    """Move imported objects to the oldest generation. Otherwise the next young collection scans all of them.

    Args:
        first: whether gtrace imported torch, so that the program made nothing before. Then later collections skip the
            imported objects too; each would take 150 ms.
    """
    if not FROZEN_IMPORTS.on or gc.get_freeze_count():
        return
    gc.freeze()
    FROZEN_IMPORTS.used()
    if not first:
        gc.unfreeze()
