"""Linear maps, embeddings, dropout, and functions as modules."""

from __future__ import annotations

from typing import Any

from gtrace.extend import Array, ops
from gtrace.nn.common import check_number
from gtrace.nn.layers.base import Module, check_key, field, within
from gtrace.nn.regularization import dropout, embedding
from gtrace.random.continuous import normal
from gtrace.random.keys import split

__all__ = ["Dropout", "Embedding", "Lambda", "Linear"]


class Linear(Module):
    """x @ weight.T + bias over the last axis, as torch.nn.Linear.

    Attributes:
        weight: (out_features, in_features).
        bias: (out_features,), or None.

    >>> gt.nn.Linear(3, 4, key=gt.random.key(0))(gt.ones((2, 3))).shape
    (2, 4)
    """

    weight: Array
    bias: Array | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None, key: Any = None
    ) -> None:
        """Sample weight and bias uniformly from [-b, b], b = 1 / sqrt(in_features).

        Raises:
            ArgumentError: the key is missing.
        """
        one, other = split(check_key("Linear", key))
        self.weight = within(one, (out_features, in_features), in_features, dtype)
        self.bias = within(other, (out_features,), in_features, dtype) if bias else None

    def __call__(self, x: Any) -> Array:
        """Return (..., out_features) for x of shape (..., in_features)."""
        return linear(x, self.weight, self.bias)


def linear(x: Any, weight: Any, bias: Any) -> Array:
    """Return x @ weight.T + bias; the bias may be None."""
    out = ops.matmul(x, ops.matrix_transpose(weight))
    return out if bias is None else out + bias


class Embedding(Module):
    """Rows of a table by index, as torch.nn.Embedding.

    Attributes:
        weight: (num_embeddings, embedding_dim).
        padding_idx: a row without a gradient, which is 0 at first; or None.

    >>> gt.nn.Embedding(10, 4, key=gt.random.key(0))(gt.array([1, 2, 1])).shape
    (3, 4)
    """

    weight: Array
    padding_idx: int | None = field(static=True)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        dtype: Any = None,
        key: Any = None,
    ) -> None:
        """Sample the rows from the standard normal distribution.

        Raises:
            ArgumentError: the key is missing.
        """
        rows = normal(check_key("Embedding", key), (num_embeddings, embedding_dim), dtype)
        self.weight = rows if padding_idx is None else rows.at[padding_idx].set(0.0)
        self.padding_idx = padding_idx

    def __call__(self, indices: Any) -> Array:
        """Return (*indices.shape, embedding_dim).

        Negative indices count from the end. An out-of-range index means the nearest row, as in JAX, because values are
        not checked. torch raises for both.
        """
        return embedding(indices, self.weight, self.padding_idx)


class Dropout(Module):
    """`gt.nn.dropout` with a key; without one, the identity. So a model that gets a key is in training.

    Attributes:
        p: the probability that an element is dropped.

    >>> drop = gt.nn.Dropout(0.5)
    >>> drop(gt.ones(4)), drop(gt.ones(4), key=gt.random.key(0))
    (Array([1., 1., 1., 1.], dtype=float32), Array([0., 0., 2., 2.], dtype=float32))
    """

    p: float = field(static=True)

    def __init__(self, p: float = 0.5) -> None:
        """Set the probability.

        Raises:
            ArgumentError: it is not in [0, 1].
        """
        self.p = check_number("nn.Dropout", "p", p, 0.0, 1.0)

    def __call__(self, x: Any, *, key: Any = None) -> Array:
        """Return x; with a key, elements are dropped."""
        return dropout(x, self.p, key, training=key is not None)


class Lambda(Module):
    """A function as a module; `Sequential` wraps each function among its layers.

    >>> gt.nn.Lambda(gt.relu)(-1.0)
    Array(0., dtype=float32)
    """

    function: Any = field(static=True)

    def __call__(self, x: Any) -> Any:
        """Return function(x)."""
        return self.function(x)
