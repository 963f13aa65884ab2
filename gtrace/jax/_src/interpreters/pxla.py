"""``jax._src.interpreters.pxla``: a table that flax reads, and in which there is nothing."""

from typing import Any

global_result_handlers: dict[type, Any] = {}
