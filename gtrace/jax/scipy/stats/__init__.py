"""The modules and names of ``jax.scipy.stats``: those of ``gtrace.scipy.stats``."""

from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.adapt import submodules as _submodules
from gtrace.scipy import stats as _ours

__getattr__, __dir__ = _namespace("jax.scipy.stats", _ours)
_submodules("jax.scipy.stats", _ours)
