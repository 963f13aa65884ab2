"""Arrays laid out over several processes. Names are those of ``jax.sharding``."""

from gtrace.distributed.sharding import *
