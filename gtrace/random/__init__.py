"""Random samples as functions of a key: threefry-2x32, with the same bits as jax.random for the same key.

A function that draws takes a key, which must not be used again, and the shape of its result.
"""

from gtrace.core.base.suggestions import suggesting as _suggesting
from gtrace.random.continuous import *
from gtrace.random.counts import *
from gtrace.random.discrete import *
from gtrace.random.gamma_distributions import *
from gtrace.random.integers import *
from gtrace.random.keys import *
from gtrace.random.matrices import *
from gtrace.random.transformed import *

__getattr__ = _suggesting("gtrace.random")
