"""Of ``jax.lib``, the platforms of devices."""

from gtrace.jax.lib import xla_bridge as xla_bridge

__all__ = ["xla_bridge"]
