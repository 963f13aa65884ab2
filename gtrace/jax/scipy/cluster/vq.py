"""The names of ``jax.scipy.cluster.vq``."""

from gtrace.jax.adapt import namespace
from gtrace.scipy import cluster

__getattr__, __dir__ = namespace("jax.scipy.cluster.vq", cluster)
