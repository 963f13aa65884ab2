"""Of ``jax.experimental``, what has a counterpart here: `io_callback`, and meshes by their sizes."""

from gtrace import io_callback as io_callback
from gtrace.extend import pure_callback as pure_callback
from gtrace.jax.extend.absent import absent_function
from gtrace.jax.ref import Ref as MutableArray
from gtrace.jax.settings import enable_x64 as enable_x64

__all__ = ["MutableArray", "cur_qdd", "enable_x64", "io_callback", "pure_callback"]

cur_qdd = absent_function("cur_qdd")
