"""What gtrace publishes elsewhere too. The rooms below its root have it from here."""

from gtrace.core.base.dtypes import DType
from gtrace.core.base.errors import ArgumentError, DtypeError, ImmutableAttributeError, ShapeError
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.trace.array import Array
from gtrace.core.transform.callbacks import pure_callback
from gtrace.core.transform.closures import closure_convert
from gtrace.core.transform.control.loops import fori_loop, while_loop
from gtrace.core.transform.control.scan import scan
from gtrace.core.transform.custom import custom_jvp, custom_vjp
from gtrace.core.transform.eval_shape import ShapeDtypeStruct
from gtrace.core.transform.jit import jit
from gtrace.core.transform.jvp import jvp
from gtrace.core.transform.ravel import ravel_pytree
from gtrace.core.transform.transpose import linear_transpose
from gtrace.core.transform.vjp import value_and_grad, vjp

__all__ = [
    "ArgumentError", "Array", "Aval", "DType", "DtypeError", "ImmutableAttributeError", "ShapeDtypeStruct",
    "ShapeError", "aval", "closure_convert", "custom_jvp", "custom_vjp", "fori_loop", "jit", "jvp",
    "linear_transpose", "pure_callback", "ravel_pytree", "scan", "value_and_grad", "vjp", "while_loop",
]  # fmt: skip
