"""``jax.experimental.shard_map``, under its older name."""

from gtrace.jax.sharding import shard_map as shard_map
