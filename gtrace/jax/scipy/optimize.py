"""The names of ``jax.scipy.optimize``: those of ``gtrace.scipy.optimize``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import optimize

__getattr__, __dir__ = namespace("jax.scipy.optimize", optimize)
