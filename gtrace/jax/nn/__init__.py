"""The names of ``jax.nn``: those of ``gtrace.nn``, with JAX's parameters."""

from gtrace import nn as _ours
from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.nn import initializers as initializers
from gtrace.jax.nn._activations import gelu as gelu
from gtrace.jax.nn._activations import log_softmax as log_softmax
from gtrace.jax.nn._activations import softmax as softmax
from gtrace.jax.nn._codes import one_hot as one_hot
from gtrace.jax.nn._scaled import scaled_matmul as scaled_matmul

__getattr__, __dir__ = _namespace("jax.nn", _ours)
