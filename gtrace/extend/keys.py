"""Arrays of random keys."""

from gtrace.core.ops.key_arrays import (
    KINDS,
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
    "KINDS", "KeyType", "PRNGKeyArray", "compared", "data_of", "extended", "keys_of", "packed_seed", "prng_key",
]  # fmt: skip
