"""Methods and attributes of ``torch.Tensor`` on Arrays, unless NumPy gives the name another meaning.

Methods that need no tracing are written here. The others record torch's method like a torch function. An immutable
array without memory, autograd state or sparse layouts lacks some attributes; the error names a replacement.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.dtypes import COMPLEX, FLOATS, LONG, DType
from gtrace.core.base.errors import ImmutableAttributeError, ShapeError, message, user_location
from gtrace.core.ops import create, floats, shape
from gtrace.core.ops.methods import ArrayMethods
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.promotion import as_dtype
from gtrace.interop.aten.conversions import real_if_needed
from gtrace.interop.torch_functions import call_torch


def _listed(sizes: tuple[Any, ...]) -> Any:
    """Return sizes or axes that were passed one by one, or as one sequence."""
    return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


GRADIENTS = "Gradients are functions: write the loss as f(x) and use gt.grad(f)(x), or gt.stop_gradient(x) for none."


class TensorMethods(ArrayMethods):
    """Methods of ``torch.Tensor`` that need no tracing. Type checkers see a base class of Array."""

    __slots__ = ()

    abs = absolute = ops.absolute
    neg = negative = ops.negative
    sign = ops.sign
    floor, ceil, trunc = ops.floor, ops.ceil, ops.trunc
    exp, expm1, exp2 = ops.exp, ops.expm1, floats.exp2
    log, log2, log10, log1p = ops.log, ops.log2, ops.log10, ops.log1p
    sqrt, rsqrt, square, reciprocal = ops.sqrt, ops.rsqrt, ops.square, ops.reciprocal
    sin, cos, tan = ops.sin, ops.cos, ops.tan
    asin = arcsin = ops.asin
    acos = arccos = ops.acos
    atan = arctan = ops.atan
    sinh, cosh, tanh = ops.sinh, ops.cosh, ops.tanh
    asinh = arcsinh = ops.asinh
    acosh = arccosh = ops.acosh
    atanh = arctanh = ops.atanh
    sigmoid, relu, erf = ops.sigmoid, ops.relu, ops.erf
    isnan, isinf, isfinite = ops.isnan, ops.isinf, ops.isfinite
    matmul = ops.matmul
    detach = ops.stop_gradient

    def softmax(self: Any, dim: Any, dtype: Any = None) -> Array:
        """Return the softmax over axis `dim`."""
        return ops.softmax(self if dtype is None else ops.astype(self, dtype), dim)

    def log_softmax(self: Any, dim: Any, dtype: Any = None) -> Array:
        """Return the logarithm of the softmax over axis `dim`."""
        return ops.log_softmax(self if dtype is None else ops.astype(self, dtype), dim)

    # shapes

    def view(self: Any, *shape_or_dtype: Any, dtype: Any = None) -> Array:
        """Return the array with another shape; given a dtype, reinterpret its bits as elements of that dtype."""
        if dtype is None and len(shape_or_dtype) == 1 and _names_dtype(shape_or_dtype[0]):
            dtype = shape_or_dtype[0]
        if dtype is None:
            return ops.reshape(self, _listed(shape_or_dtype)) if shape_or_dtype else self
        return call_torch("view", _reinterpreted, self, as_dtype(dtype))

    def view_as(self: Any, other: Any) -> Array:
        """Return the array with the shape of `other`."""
        return ops.reshape(self, lift("view_as", other).shape)

    reshape_as = view_as

    def flatten(self: Any, start_dim: Any = 0, end_dim: Any = -1) -> Array:
        """Return the array with the axes from `start_dim` to `end_dim`, by default all, as one axis."""
        first, last = (shape.normalize_axis("flatten", k, max(self.ndim, 1)) for k in (start_dim, end_dim))
        if first > last:
            raise ShapeError(message("flatten", "start_dim before end_dim", f"{first} and {last}", "Exchange them."))
        sizes = self.shape
        return ops.reshape(self, (*sizes[:first], math.prod(sizes[first : last + 1]), *sizes[last + 1 :]))

    def expand(self: Any, *sizes: Any) -> Array:
        """Return the array broadcast to a shape, in which -1 keeps a size."""
        wanted = tuple(_listed(sizes))
        first = len(wanted) - len(self.shape)
        kept = [self.shape[k - first] if n == -1 and k >= first else n for k, n in enumerate(wanted)]
        return ops.broadcast_to(self, tuple(kept))

    def expand_as(self: Any, other: Any) -> Array:
        """Return the array broadcast to the shape of `other`."""
        return ops.broadcast_to(self, lift("expand_as", other).shape)

    def broadcast_to(self: Any, size: Any) -> Array:
        """Return the array broadcast to a shape."""
        return ops.broadcast_to(self, size)

    def permute(self: Any, *dims: Any) -> Array:
        """Return the array with its axes permuted."""
        return ops.permute_dims(self, tuple(_listed(dims)))

    def unsqueeze(self: Any, dim: Any) -> Array:
        """Return the array with a new axis of size 1."""
        return ops.expand_dims(self, dim)

    def t(self: Any) -> Array:
        """Return the transpose of a matrix; fewer dimensions are unchanged."""
        return self if self.ndim < 2 else call_torch("t", torch.Tensor.t, self) if self.ndim > 2 else self.T

    @property
    def H(self: Any) -> Array:  # noqa: N802 - torch's name
        """The conjugate transpose of a matrix."""
        return ops.conj(self.t())

    @property
    def mH(self: Any) -> Array:  # noqa: N802 - torch's name
        """The array with its last two axes exchanged, conjugated."""
        return ops.conj(self.mT)

    # dtypes and devices

    def to(self: Any, *args: Any, dtype: Any = None, device: Any = None, **how: Any) -> Array:
        """Return the array with the dtype or device, or those of an array, in the arguments.

        Args:
            how: `copy`, `non_blocking` and `memory_format`, which have no effect.
        """
        if unknown := how.keys() - {"copy", "non_blocking", "memory_format"}:
            raise TypeError(f"to() got an unexpected keyword argument {min(unknown)!r}")
        for arg in args:
            if isinstance(arg, (Array, torch.Tensor)):
                dtype, device = arg.dtype, arg.device
            elif isinstance(arg, bool):
                continue  # positional non_blocking and copy
            elif arg is not None and _names_dtype(arg):
                dtype = arg
            elif arg is not None:
                device = arg
        out = self if dtype is None else _converted(self, dtype)
        return out if device is None else create.to_device(out, device)

    def type_as(self: Any, other: Any) -> Array:
        """Return the array with the dtype of `other`."""
        return _converted(self, lift("type_as", other).dtype)

    def cpu(self: Any, memory_format: Any = None) -> Array:
        """Return the array on the CPU."""
        return create.to_device(self, "cpu")

    def cuda(self: Any, device: Any = None, non_blocking: Any = False, memory_format: Any = None) -> Array:
        """Return the array on a GPU."""
        return create.to_device(self, "cuda" if device is None else torch.device("cuda", device)
                                if _is_size(device) else device)  # fmt: skip

    def clone(self: Any, *, memory_format: Any = None) -> Array:
        """Return another array of the same value, which stays usable if this one is donated."""
        return create.own(self)

    def contiguous(self: Any, memory_format: Any = None) -> Array:
        """Return the array itself, because Arrays show no memory."""
        return self

    # known without values

    def dim(self: Any) -> Any:
        """Return the number of axes."""
        return len(self.shape)

    ndimension = dim

    def numel(self: Any) -> Any:
        """Return the number of elements."""
        return self.size

    nelement = numel

    def element_size(self: Any) -> Any:
        """Return the bytes of one element."""
        return self.itemsize

    def is_floating_point(self: Any) -> Any:
        """Whether the dtype is real and floating."""
        return self.aval.dtype in FLOATS

    def is_complex(self: Any) -> Any:
        """Whether the dtype is complex."""
        return self.aval.dtype in COMPLEX

    def is_signed(self: Any) -> Any:
        """Whether the dtype has negative numbers."""
        return self.aval.dtype.is_signed

    def get_device(self: Any) -> Any:
        """Return the number of the GPU, -1 on the CPU."""
        return -1 if self.aval.device.type == "cpu" else self.aval.device.index

    def is_contiguous(self: Any, memory_format: Any = None) -> Any:
        """True, because Arrays show no memory."""
        return True

    layout = torch.strided
    is_sparse = is_sparse_csr = is_quantized = is_nested = is_mkldnn = is_meta = False
    is_leaf = True

    @property
    def requires_grad(self: Any) -> Any:
        """False, because gradients are functions."""
        return False

    @requires_grad.setter
    def requires_grad(self: Any, value: Any) -> NoReturn:
        raise ImmutableAttributeError(f"gt.Array.requires_grad is False. {GRADIENTS} (at {user_location()})")

    @property
    def is_cpu(self: Any) -> Any:
        """Whether the array is on the CPU."""
        return self.aval.device.type == "cpu"

    @property
    def is_cuda(self: Any) -> Any:
        """Whether the array is on a GPU."""
        return self.aval.device.type == "cuda"


def _reinterpreted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor's bits as elements of another dtype; an empty tensor may have any strides."""
    return (x.contiguous() if x.numel() else torch.empty(x.shape, dtype=x.dtype, device=x.device)).view(dtype)


def _is_size(x: Any) -> bool:
    return hasattr(x, "__index__") and not isinstance(x, bool)


def _names_dtype(x: Any) -> bool:
    return x in LONG.values() if isinstance(x, str) else isinstance(x, (torch.dtype, DType, numpy.dtype, type))


def _converted(x: Array, dtype: Any) -> Array:
    """Return the array in a dtype as in torch: complex numbers lose their imaginary part with a warning."""
    return ops.astype(real_if_needed(x, dtype), dtype)


def _cast(name: str, dtype: torch.dtype) -> Callable[..., Array]:
    def cast_to(self: Array, memory_format: Any = None) -> Array:
        return _converted(self, dtype)

    cast_to.__doc__ = f"Return the array as {LONG[dtype]}."
    return _named(cast_to, name)


def _recording(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def recording(self: Array, *args: Any, **kwargs: Any) -> Any:
        return call_torch(name, method, self, *args, **kwargs)

    recording.__doc__ = f"Record ``torch.Tensor.{name}``."
    return _named(recording, name)


def _with_torch_keywords(name: str, numpy_method: Callable[..., Any]) -> Callable[..., Any]:
    torch_method = _recording(name, getattr(torch.Tensor, name))

    @functools.wraps(numpy_method)
    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        if kwargs and kwargs.get("out", False) is None:  # numpy.sum(x) passes it
            del kwargs["out"]
        if kwargs and not KEYWORDS.isdisjoint(kwargs):
            return torch_method(self, *args, **kwargs)
        return numpy_method(self, *args, **kwargs)

    return method


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__, function.__qualname__ = name, f"Array.{name}"
    return function


class Refused:
    """Replaces a torch method that Arrays cannot have: reading it raises an AttributeError with the reason."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason

    def __get__(self, obj: Any, cls: type) -> NoReturn:
        raise ImmutableAttributeError(f"gt.Array has no attribute {self.name!r}. {self.reason} (at {user_location()})")

    def __set__(self, obj: Any, value: Any) -> NoReturn:
        self.__get__(obj, type(obj))


CASTS = {
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16,
    "long": torch.int64, "int": torch.int32, "short": torch.int16, "char": torch.int8, "byte": torch.uint8,
    "bool": torch.bool, "cfloat": torch.complex64, "cdouble": torch.complex128,
}  # fmt: skip

KEYWORDS = frozenset({"dim", "keepdim", "unbiased"})
"""Keywords that only torch's methods have."""

SHARED = "sum mean max min prod any all var std argmax argmin cumsum cumprod argsort sort squeeze"
"""NumPy's methods that follow torch if they are called with one of those keywords."""

REASONS = {
    "Arrays are dense.": (
        "ccol_indices coalesce col_indices crow_indices dense_dim dequantize indices int_repr is_coalesced "
        "q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qscheme "
        "resize_as_sparse_ row_indices smm sparse_dim sparse_mask sparse_resize_ sparse_resize_and_clear_ "
        "sspaddmm to_dense to_mkldnn to_padded_tensor to_sparse "
        "to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr values"
    ),
    "Arrays show no memory; x.to_torch() returns a tensor.": (
        "as_subclass const_data_ptr data_ptr is_distributed is_inference is_pinned is_set_to is_shared "
        "module_load pin_memory record_stream share_memory_ storage storage_offset storage_type stride untyped_storage"
    ),
    GRADIENTS: (
        "data grad grad_dtype grad_fn output_nr register_hook register_post_accumulate_grad_hook reinforce "
        "requires_grad_ retain_grad retains_grad"
    ),
    "Draw with gt.random and a key.": (
        "bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial normal_ random_ uniform_"
    ),
    "Use x.to(device).": "ipu mtia xpu is_ipu is_maia is_mps is_mtia is_vulkan is_xla is_xpu",
    "Use gt.zeros_like(x).": "zero_",
    "Use gt.full_like(x, value).": "fill_",
    "Use x.at[i, i].set(value), with i = gt.arange(len(x)).": "fill_diagonal_",
    "Use gt.vmap, or operations on whole arrays.": "apply_ map_ map2_",
    "Use the other array.": "copy_ set_",
    "Use x.reshape(shape), or index it.": "resize resize_ resize_as resize_as_",
    "It is no method of torch's own.": "index dims order name names volatile",
}
"""Methods and attributes of torch.Tensor that Arrays cannot have."""


def install() -> None:
    """Add the methods to Array: those written here, then casts, then all others of torch.Tensor."""
    found: dict[str, Any] = {name: value for name, value in vars(TensorMethods).items() if not name.startswith("_")}
    found |= {name: _cast(name, dtype) for name, dtype in CASTS.items()}
    found |= {name: _with_torch_keywords(name, getattr(ArrayMethods, name)) for name in SHARED.split()}
    for reason, names in REASONS.items():
        found |= {name: Refused(name, reason) for name in names.split()}
    plain = [name for name in dir(torch.Tensor) if not name.startswith("_")]
    for name in plain:
        if name not in found and not hasattr(Array, name) and not name.endswith("_"):
            found[name] = _recording(name, getattr(torch.Tensor, name))
    for name in plain:
        if name not in found and name.endswith("_"):
            fix = f"Instead of x.{name}(...) use x = x.{name[:-1]}(...)."
            found[name] = Refused(name, f"Arrays are immutable. {fix}")
    for name, value in found.items():
        setattr(Array, name, value)
    setattr(Array, "__dir__", _dir)  # noqa: B010 - the type of Array states its own names


def _dir(self: Array) -> list[str]:
    return [name for name in object.__dir__(self) if not isinstance(vars(Array).get(name), Refused)]


install()
