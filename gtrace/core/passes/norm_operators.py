"""torch's operators for norms, as operations in place of what computes the same."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.edit import Replacements
from gtrace.core.ir.graph import Graph, Operand, Scalar
from gtrace.core.passes.tuned import LEAST_NORM_CHANNELS

LAYER, LAYER_BACKWARD = "aten.native_layer_norm.default", "aten.native_layer_norm_backward.default"
BATCH, BATCH_BACKWARD = "aten._native_batch_norm_legit.no_stats", "aten.native_batch_norm_backward.default"
BATCH_WITH_VARIANCE = "aten._native_batch_norm_legit_functional.default"

GROUP, GROUP_BACKWARD = "aten.native_group_norm.default", "aten.native_group_norm_backward.default"

FORWARD, BACKWARD = "forward", "backward"
"""Which operator a value is a result of."""

MEAN, VARIANCE, SQUARES = "mean", "variance", "squares"
"""Beside the norm: means of rows, their variances, and the sums of squares that these are means of."""


@attrs.frozen
class Operands:
    """What a norm takes.

    Attributes:
        x: the array.
        weight, bias: vectors; None: there is none.
        eps: what is added to the variance.
    """

    x: int
    weight: int | None
    bias: int | None
    eps: float

    @property
    def vectors(self) -> tuple[int, ...]:
        """Those that there are."""
        return tuple(v for v in (self.weight, self.bias) if v is not None)

    @property
    def named(self) -> tuple[str | None, str | None]:
        """What stands for each among the arguments of an operator."""
        return None if self.weight is None else "x", None if self.bias is None else "x"


def _flat(make: Replacements, vectors: Sequence[int]) -> tuple[int, ...]:
    """Return vectors with one axis."""
    return tuple([make.shaped(v, (make.aval(v).size,)) for v in vectors])


def _shaped(make: Replacements, name: str, params: tuple[Any, ...], ins: Sequence[Operand], out: int) -> None:
    """Make a node whose result is a vector with one axis, and give it to a value of the program in its shape."""
    shape = make.aval(out).shape
    if len(shape) == 1:
        make(name, params, *ins, out=out)
    else:
        make("reshape", (shape,), make(name, params, *ins), out=out)


def _number(value: float, kind: Any) -> Scalar:
    return Scalar(value, aval((), kind.dtype, kind.device, True))


@attrs.frozen
class Norm:
    """Calls torch's operators for a kind of norms. Subclasses say which these are, and how they take arrays.

    Attributes:
        vector: the axis along which weight and bias lie; None: the operators get none.
    """

    vector: int | None

    has_variance = False

    def forward(
        self, make: Replacements, given: Operands, results: Mapping[int, Any], gradient: bool
    ) -> tuple[int, ...]:
        """Make the norm and what has its `results`; returns its means and inverse deviations, for a `gradient`."""
        x = self._taken(make, given.x)
        norm = self._norm(make, given, x, results.values())
        # beside the norm: parts of a program exchange arrays
        kept = (make("project", (1,), norm), make("project", (2,), norm)) if gradient else ()
        for value, what in results.items():
            self._give(make, given, norm, what, value)
        return kept

    def backward(
        self,
        make: Replacements,
        given: Operands,
        cotangent: int,
        kept: Sequence[int],
        results: Mapping[int, int],
        whole: bool,
    ) -> int | None:
        """Make the gradient and what has its `results`; returns that of the array if `whole`.

        Args:
            kept: what `forward` has returned.
            results: by value: 0 for the gradient of the array, 1 for that of the weight, 2 for that of the bias.
        """
        x, ct = self._taken(make, given.x), self._taken(make, cotangent)
        wanted = {*results.values()}
        mask = whole or 0 in wanted, 1 in wanted, 2 in wanted
        found = self._slope(make, given, ct, x, kept, mask)
        for value, place in results.items():
            at = sum(mask[:place])  # the operator leaves out what it does not compute
            if place:
                _shaped(make, "project", (at,), (found,), value)
            else:
                self._back(make, given, found, value)
        return self._back(make, given, found) if whole else None

    def _taken(self, make: Replacements, x: int) -> int:
        """Return an array as the operators take it."""
        return x

    def _back(self, make: Replacements, given: Operands, operator: int, out: int | None = None) -> int:
        """Take the first result of an operator, an array of the program's shape."""
        return make("project", (0,), operator, out=out)

    def _give(self, make: Replacements, given: Operands, norm: int, what: Any, out: int) -> None:
        """Give a value of the program what it is of a norm."""
        self._back(make, given, norm, out)

    def _norm(self, make: Replacements, given: Operands, x: int, results: Collection[Any]) -> int:
        raise NotImplementedError

    def _slope(
        self, make: Replacements, given: Operands, ct: int, x: int, kept: Sequence[int], mask: tuple[bool, ...]
    ) -> int:
        raise NotImplementedError


@attrs.frozen
class LayerNorm(Norm):
    """Norms over the last axes.

    Attributes:
        axes: how many these are. Of several, torch's vectors would be arrays.
    """

    axes: int

    def _norm(self, make: Replacements, given: Operands, x: int, results: Collection[Any]) -> int:
        arguments = ("x", self._sizes(make, x), *given.named, given.eps)
        return make("aten", (LAYER, arguments), x, *self._vectors(make, given))

    def _slope(
        self, make: Replacements, given: Operands, ct: int, x: int, kept: Sequence[int], mask: tuple[bool, ...]
    ) -> int:
        arguments = ("x", "x", self._sizes(make, x), "x", "x", *given.named, mask)
        return make("aten", (LAYER_BACKWARD, arguments), ct, x, *kept, *self._vectors(make, given))

    def _sizes(self, make: Replacements, x: int) -> tuple[int, ...]:
        sizes: tuple[int, ...] = make.aval(x).shape[-self.axes :]
        return sizes

    def _vectors(self, make: Replacements, given: Operands) -> tuple[int, ...]:
        return () if self.vector is None else _flat(make, given.vectors)


@attrs.frozen
class BatchNorm(Norm):
    """Norms over all axes but that of the vectors."""

    vector: int

    has_variance = True

    def _norm(self, make: Replacements, given: Operands, x: int, results: Collection[Any]) -> int:
        vectors, kind = _flat(make, given.vectors), make.aval(x)
        if {VARIANCE, SQUARES}.isdisjoint(results):
            return make("aten", (BATCH, ("x", *given.named, True, 0.0, given.eps)), x, *vectors)
        zeros = make("full", ((kind.shape[1],), str(kind.device)), _number(0.0, kind))
        arguments = ("x", *given.named, "x", "x", True, 1.0, given.eps)
        return make("aten", (BATCH_WITH_VARIANCE, arguments), x, *vectors, zeros, zeros)

    def _give(self, make: Replacements, given: Operands, norm: int, what: Any, out: int) -> None:
        kind = make.aval(given.x)
        count = kind.size // kind.shape[self.vector]
        # running variances are those of a sample
        factors = {VARIANCE: (count - 1) / count, SQUARES: count - 1.0}
        if what == MEAN:
            _shaped(make, "project", (1,), (norm,), out)
        elif what in factors:
            _shaped(make, "mul", (), (make("project", (4,), norm), _number(factors[what], kind)), out)
        else:
            self._back(make, given, norm, out)

    def _slope(
        self, make: Replacements, given: Operands, ct: int, x: int, kept: Sequence[int], mask: tuple[bool, ...]
    ) -> int:
        weight = () if given.weight is None else _flat(make, (given.weight,))
        arguments = ("x", "x", given.named[0], None, None, "x", "x", True, given.eps, mask)
        return make("aten", (BATCH_BACKWARD, arguments), ct, x, *weight, *kept)

    def _order(self, axes: int) -> tuple[int, ...]:
        """Return the order of axes with the one that stays second."""
        first, *rest = (k for k in range(axes) if k != self.vector)
        return first, self.vector, *rest

    def _taken(self, make: Replacements, x: int) -> int:
        return make.arranged(x, self._order(len(make.aval(x).shape)))

    def _back(self, make: Replacements, given: Operands, operator: int, out: int | None = None) -> int:
        order = self._order(len(make.aval(given.x).shape))
        if order == tuple(range(len(order))):
            return make("project", (0,), operator, out=out)
        back = tuple(order.index(k) for k in range(len(order)))
        return make("permute", (back,), make("project", (0,), operator), out=out)


@attrs.frozen
class GroupNorm(Norm):
    """Norms of (batch, *spatial, groups, *channels) over all but the batch and the groups, as of images by channels.

    Attributes:
        groups: the axis of the groups.
    """

    groups: int

    def _norm(self, make: Replacements, given: Operands, x: int, results: Collection[Any]) -> int:
        return make("aten", (GROUP, ("x", None, None, *self._sizes(make, given, x), given.eps)), x)

    def _slope(
        self, make: Replacements, given: Operands, ct: int, x: int, kept: Sequence[int], mask: tuple[bool, ...]
    ) -> int:
        arguments = ("x", "x", "x", "x", None, *self._sizes(make, given, x), mask)
        return make("aten", (GROUP_BACKWARD, arguments), ct, x, *kept)

    def _taken(self, make: Replacements, x: int) -> int:
        """Return an array as images, with their channels second."""
        shape = make.aval(x).shape
        height, width = shape[1], math.prod(shape[2 : self.groups])
        images = make("reshape", ((shape[0], height, width, math.prod(shape[self.groups :])),), x)
        return make("permute", ((0, 3, 1, 2),), images)

    def _sizes(self, make: Replacements, given: Operands, images: int) -> tuple[int, ...]:
        batch, channels, height, width = make.aval(images).shape
        return batch, channels, height * width, make.aval(given.x).shape[self.groups]

    def _back(self, make: Replacements, given: Operands, operator: int, out: int | None = None) -> int:
        images = make("permute", ((0, 2, 3, 1),), make("project", (0,), operator))
        return make("reshape", (make.aval(given.x).shape,), images, out=out)


def turns_axes(graph: Graph) -> bool:
    """Whether there are operators for norms that take other orders of axes than programs may have."""
    overloads = (BATCH, BATCH_WITH_VARIANCE, GROUP)
    return any(node.op.name == "aten" and node.attributes["overload"] in overloads for node in graph.nodes)


def normed(a: Any, axes: tuple[int, ...]) -> Norm | None:
    """Return the operators for norms of arrays of this type over these axes; None: there are none."""
    if not isinstance(a, Aval) or a.dtype not in (torch.float32, torch.float64) or a.sharding is not None:
        return None
    # rows of one element have no variance
    return _operators(axes, a.shape) if a.size > 0 and math.prod(a.shape[k] for k in axes) > 1 else None


def _operators(axes: tuple[int, ...], shape: tuple[int, ...]) -> Norm | None:
    kept = [k for k in range(len(shape)) if k not in axes]
    if not kept or axes != tuple(k for k in range(len(shape)) if k not in kept):
        return None
    if kept == list(range(len(kept))):
        return LayerNorm(kept[-1] + 1 if len(axes) == 1 else None, len(axes))
    if len(kept) == 1:
        least = LEAST_NORM_CHANNELS if kept[0] == len(shape) - 1 else 2
        return BatchNorm(kept[0]) if shape[kept[0]] >= least else None
    grouped = len(kept) == 2 and kept[0] == 0 and math.prod(shape[kept[1] + 1 :]) > 1
    return GroupNorm(None, kept[1]) if grouped else None
