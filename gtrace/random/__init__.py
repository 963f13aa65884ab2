"""Random draws as functions of a key: threefry-2x32, with the bits that jax.random gives for the same key."""

from gtrace.random.continuous import *
from gtrace.random.counts import *
from gtrace.random.discrete import *
from gtrace.random.gamma import *
from gtrace.random.integers import *
from gtrace.random.keys import *
from gtrace.random.matrices import *
from gtrace.random.transformed import *
from gtrace.suggestions import suggesting as _suggesting

__getattr__ = _suggesting("gtrace.random")
