"""torch's operators for norms, as operations in place of what computes the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


@attrs.frozen
class LayerNorm:
    """Norms over the last axes.

    Attributes:
        axes: how many these are. Of several, torch's vectors would be arrays.
    """

    axes: int

    has_variance = False

    @property
    def has_vectors(self) -> bool:
        """Whether the operator takes a weight and a bias."""
        return self.axes == 1

    def forward(
        self, make: Replacements, given: Operands, results: Mapping[int, Any], gradient: bool
    ) -> tuple[int, ...]:
        """Make the norm and what has its `results`; returns its means and inverse deviations, for a `gradient`."""
        sizes = make.aval(given.x).shape[-self.axes :]
        vectors = self._vectors(make, given)
        norm = make("aten", (LAYER, ("x", sizes, *given.named, given.eps)), given.x, *vectors)
        # beside the norm: parts of a program exchange arrays
        kept = (make("project", (1,), norm), make("project", (2,), norm)) if gradient else ()
        for value in results:
            make("project", (0,), norm, out=value)
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
        wanted = {*results.values()}
        mask = whole or 0 in wanted, 1 in wanted, 2 in wanted
        arguments = ("x", "x", make.aval(given.x).shape[-self.axes :], "x", "x", *given.named, mask)
        found = make("aten", (LAYER_BACKWARD, arguments), cotangent, given.x, *kept, *self._vectors(make, given))
        for value, place in results.items():
            at = (sum(mask[:place]),)  # the operator leaves out what it does not compute
            if place:
                _shaped(make, "project", at, (found,), value)
            else:
                make("project", at, found, out=value)
        return make("project", (0,), found) if whole else None

    def _vectors(self, make: Replacements, given: Operands) -> tuple[int, ...]:
        return _flat(make, given.vectors) if self.has_vectors else ()


@attrs.frozen
class BatchNorm:
    """Norms over all axes but one.

    Attributes:
        axis: that one.
    """

    axis: int

    has_variance = True
    has_vectors = True

    def forward(
        self, make: Replacements, given: Operands, results: Mapping[int, Any], gradient: bool
    ) -> tuple[int, ...]:
        """Make the norm and what has its `results`; see `LayerNorm.forward`."""
        x, vectors = self._turned(make, given.x), _flat(make, given.vectors)
        kind = make.aval(x)
        rows = kind.shape[1]
        count = kind.size // rows
        if {VARIANCE, SQUARES} & {*results.values()}:
            zeros = make("full", ((rows,), str(kind.device)), self._number(0.0, kind))
            arguments = ("x", *given.named, "x", "x", True, 1.0, given.eps)
            norm = make("aten", (BATCH_WITH_VARIANCE, arguments), x, *vectors, zeros, zeros)
        else:
            norm = make("aten", (BATCH, ("x", *given.named, True, 0.0, given.eps)), x, *vectors)
        kept = (make("project", (1,), norm), make("project", (2,), norm)) if gradient else ()
        # running variances are those of a sample
        factors = {VARIANCE: (count - 1) / count, SQUARES: count - 1.0}
        for value, what in results.items():
            if what == MEAN:
                _shaped(make, "project", (1,), (norm,), value)
            elif what in factors:
                variance = make("project", (4,), norm)
                _shaped(make, "mul", (), (variance, self._number(factors[what], kind)), value)
            else:
                self._turned_back(make, norm, 0, value)
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
        """Make the gradient and what has its `results`; see `LayerNorm.backward`."""
        x, ct = self._turned(make, given.x), self._turned(make, cotangent)
        weight = () if given.weight is None else _flat(make, (given.weight,))
        wanted = {*results.values()}
        mask = whole or 0 in wanted, 1 in wanted, 2 in wanted
        arguments = ("x", "x", given.named[0], None, None, "x", "x", True, given.eps, mask)
        found = make("aten", (BATCH_BACKWARD, arguments), ct, x, *weight, *kept)
        for value, place in results.items():
            at = sum(mask[:place])
            if place:
                _shaped(make, "project", (at,), (found,), value)
            else:
                self._turned_back(make, found, at, value)
        return self._turned_back(make, found, 0) if whole else None

    def _number(self, value: float, kind: Any) -> Scalar:
        return Scalar(value, aval((), kind.dtype, kind.device, True))

    def _order(self, axes: int) -> tuple[int, ...]:
        """Return the order of axes with the one that stays second."""
        first, *rest = (k for k in range(axes) if k != self.axis)
        return first, self.axis, *rest

    def _turned(self, make: Replacements, x: int) -> int:
        return make.arranged(x, self._order(len(make.aval(x).shape)))

    def _turned_back(self, make: Replacements, operator: int, place: int, out: int | None = None) -> int:
        """Take an array out of the results of an operator, with its axes in their order."""
        order = self._order(len(make.aval(operator).avals[place].shape))
        if order == tuple(range(len(order))):
            return make("project", (place,), operator, out=out)
        back = tuple(order.index(k) for k in range(len(order)))
        return make("permute", (back,), make("project", (place,), operator), out=out)


@attrs.frozen
class GroupNorm:
    """Norms of (batch, *spatial, groups, *channels) over all but the batch and the groups, as of images by channels.

    Attributes:
        groups: the axis of the groups.
    """

    groups: int

    has_variance = False
    has_vectors = False

    def forward(
        self, make: Replacements, given: Operands, results: Mapping[int, Any], gradient: bool
    ) -> tuple[int, ...]:
        """Make the norm and what has its `results`; see `LayerNorm.forward`."""
        x = self._images(make, given.x)
        norm = make("aten", (GROUP, ("x", None, None, *self._sizes(make, given.x, x), given.eps)), x)
        kept = (make("project", (1,), norm), make("project", (2,), norm)) if gradient else ()
        for value in results:
            self._back(make, norm, make.aval(given.x).shape, value)
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
        """Make the gradient and what has its `results`; see `LayerNorm.backward`."""
        x, ct = self._images(make, given.x), self._images(make, cotangent)
        sizes = self._sizes(make, given.x, x)
        arguments = ("x", "x", "x", "x", None, *sizes, (True, False, False))
        found = make("aten", (GROUP_BACKWARD, arguments), ct, x, *kept)
        shape = make.aval(given.x).shape
        for value in results:
            self._back(make, found, shape, value)
        return self._back(make, found, shape) if whole else None

    def _images(self, make: Replacements, x: int) -> int:
        """Return an array as images, with their channels second."""
        shape = make.aval(x).shape
        height, width = shape[1], math.prod(shape[2 : self.groups])
        images = make("reshape", ((shape[0], height, width, math.prod(shape[self.groups :])),), x)
        return make("permute", ((0, 3, 1, 2),), images)

    def _sizes(self, make: Replacements, x: int, images: int) -> tuple[int, ...]:
        batch, channels, height, width = make.aval(images).shape
        return batch, channels, height * width, make.aval(x).shape[self.groups]

    def _back(self, make: Replacements, operator: int, shape: tuple[int, ...], out: int | None = None) -> int:
        """Take the images out of the results of an operator, in the shape of the array."""
        images = make("permute", ((0, 2, 3, 1),), make("project", (0,), operator))
        return make("reshape", (shape,), images, out=out)


Operators = LayerNorm | BatchNorm | GroupNorm


def turns_axes(graph: Graph) -> bool:
    """Whether there are operators for norms that take other orders of axes than programs may have."""
    overloads = (BATCH, BATCH_WITH_VARIANCE, GROUP)
    return any(node.op.name == "aten" and node.params[0] in overloads for node in graph.nodes)


def normed(a: Any, axes: tuple[int, ...]) -> Operators | None:
    """Return the operators for norms of arrays of this type over these axes; None: there are none."""
    if not isinstance(a, Aval) or a.dtype not in (torch.float32, torch.float64) or a.sharding is not None:
        return None
    # rows of one element have no variance
    return operators(axes, a.shape) if a.size > 0 and math.prod(a.shape[k] for k in axes) > 1 else None


def operators(axes: tuple[int, ...], shape: tuple[int, ...]) -> Operators | None:
    """Return the operators for norms of arrays of this shape over these axes; None: there are none."""
    kept = [k for k in range(len(shape)) if k not in axes]
    if not kept or axes != tuple(k for k in range(len(shape)) if k not in kept):
        return None
    if kept == list(range(len(kept))):
        return LayerNorm(len(axes))
    if len(kept) == 1:
        least = LEAST_NORM_CHANNELS if kept[0] == len(shape) - 1 else 2
        return BatchNorm(kept[0]) if shape[kept[0]] >= least else None
    grouped = len(kept) == 2 and kept[0] == 0 and math.prod(shape[kept[1] + 1 :]) > 1
    return GroupNorm(kept[1]) if grouped else None
