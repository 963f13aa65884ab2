"""Of JAX's internals, the modules that libraries import which otherwise keep to public names.

Beside each stands who imports it: ``flatten_util`` blackjax, ``compiler`` chex, ``core``, ``dtypes`` and
``traceback_util`` flax, ``core`` numpyro, ``xla_bridge`` chex.
"""

from gtrace.jax._src import core, dtypes, flatten_util, traceback_util, xla_bridge

__all__ = ["core", "dtypes", "flatten_util", "traceback_util", "xla_bridge"]
