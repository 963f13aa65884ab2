"""``jax.experimental.shard_map``, under its older name."""

from gtrace.jax.meshes import shard_map as shard_map
