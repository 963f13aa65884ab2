"""Of ``jax.lib``, the platforms of devices, and the version of jaxlib whose results these are."""

from gtrace.jax.adapt import __version__ as __version__
from gtrace.jax.lib import xla_bridge as xla_bridge
from gtrace.jax.lib import xla_extension as xla_extension

__all__ = ["__version__", "xla_bridge", "xla_extension"]
