"""``jnp.float32`` and its like: in JAX these are classes of scalars, equal to dtypes and found in tables as NumPy's."""

from __future__ import annotations

from typing import Any

from gtrace import dtypes, extend
from gtrace.extend import DType

WEAK = (int, float, complex)
"""The types of numbers whose arrays have weak dtypes; as dtypes they stand for numbers."""

PYTHON = frozenset([bool, *WEAK])


class ScalarMeta(type):
    """The class of the classes of scalars."""

    dtype: DType
    _hash: int | None = None

    def __call__(cls, x: Any) -> Any:
        """Return an array of this dtype."""
        return cls.dtype(x)  # type: ignore[operator]

    def __eq__(cls, other: object) -> Any:
        return cls is other or cls.dtype == other

    def __hash__(cls) -> int:
        # as NumPy's class of scalars, so that tables by one find the other
        if cls._hash is None:
            cls._hash = hash(cls.dtype.numpy_type)
        return cls._hash

    def __repr__(cls) -> str:
        return f"<class 'jax.numpy.{cls.__name__}'>"

    def __instancecheck__(cls, instance: Any) -> bool:
        kind = cls.dtype.numpy_type
        return isinstance(kind, type) and isinstance(instance, kind)


WITHOUT_TORCH = {name: DType(name) for name in extend.WITHOUT_TORCH}
"""The dtypes of ml_dtypes that torch lacks, by name."""

DEFAULTS = {"int_": dtypes.int64, "uint": dtypes.uint64, "float_": dtypes.float64, "complex_": dtypes.complex128}
"""The dtypes of 64 bits under their names in ``jax.numpy``; arrays of them are of 32 bits unless ``x64`` is on."""

_KNOWN: dict[str, ScalarMeta] = {}


def scalar_type(dtype: DType) -> ScalarMeta:
    """Return the class of scalars of a dtype.

    >>> import numpy
    >>> import gtrace.jax.numpy as jnp
    >>> {numpy.float32: 1}[jnp.float32], jnp.float32 == jnp.ones(2).dtype, jnp.float32(2)
    (1, True, Array(2., dtype=float32))
    """
    found = _KNOWN.get(dtype.name)
    if found is None:
        fields = {"dtype": dtype, "__module__": "gtrace.jax.numpy", "__doc__": f"The dtype {dtype.name}."}
        found = _KNOWN[dtype.name] = ScalarMeta(dtype.name, (), fields)
    return found
