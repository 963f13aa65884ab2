"""Of ``jax.interpreters.pxla``, the mesh that is entered, and a function of XLA's programs that libraries import."""

from __future__ import annotations

from typing import Any

from gtrace.jax.adapt import internal
from gtrace.jax.extend.absent import absent_function
from gtrace.jax.meshes import get_mesh

__all__ = ["global_avals_to_results_handler", "thread_resources"]

global_avals_to_results_handler = absent_function("global_avals_to_results_handler")


class _Resources:
    """What a thread computes with. It is its own ``env``."""

    @property
    def env(self) -> _Resources:
        """The resources."""
        return self

    @property
    def physical_mesh(self) -> Any:
        """The mesh that is entered, or one without axes."""
        return get_mesh()


thread_resources = _Resources()

__getattr__ = internal("jax.interpreters.pxla")
