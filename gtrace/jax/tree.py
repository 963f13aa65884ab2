"""The names of ``jax.tree``."""

from gtrace.extend import tree
from gtrace.jax import paths
from gtrace.jax.adapt import namespace

__getattr__, __dir__ = namespace("jax.tree", paths, tree)
