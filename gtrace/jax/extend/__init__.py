"""Of ``jax.extend``, what libraries use that define no primitives of their own."""

from gtrace.jax.extend import backend as backend
from gtrace.jax.extend import core as core
from gtrace.jax.extend import ifrt_programs as ifrt_programs
from gtrace.jax.extend import linear_util as linear_util
from gtrace.jax.extend import random as random
from gtrace.jax.extend import source_info_util as source_info_util

__all__ = ["backend", "core", "ifrt_programs", "linear_util", "random", "source_info_util"]
