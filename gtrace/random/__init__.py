"""Random draws as functions of a key: threefry-2x32, with the bits that jax.random gives for the same key."""

from gtrace.random.continuous import exponential, gumbel, laplace, normal, truncated_normal, uniform
from gtrace.random.discrete import bernoulli, categorical, choice, permutation
from gtrace.random.integers import randint
from gtrace.random.keys import bits, fold_in, key, split
