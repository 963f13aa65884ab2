"""Of ``jax.experimental``, what has a counterpart here: `io_callback`, and meshes by their sizes."""

from gtrace.core.transform.callbacks import io_callback as io_callback
from gtrace.core.transform.callbacks import pure_callback as pure_callback
from gtrace.jax.settings import enable_x64 as enable_x64

__all__ = ["enable_x64", "io_callback", "pure_callback"]
