"""The modules of ``jax.scipy.cluster``."""

from gtrace.jax.scipy.cluster import vq as vq
