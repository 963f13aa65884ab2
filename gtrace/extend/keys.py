"""Arrays of random keys."""

from gtrace.core.ops.key_arrays import (
    KINDS,
    MASK,
    KeyType,
    PRNGKeyArray,
    compared,
    data_of,
    extended,
    keys_of,
    packed_seed,
    prng_key,
)

__all__ = [
    "KINDS", "KeyType", "MASK", "PRNGKeyArray", "compared", "data_of", "extended", "keys_of", "packed_seed",
    "prng_key",
]  # fmt: skip
