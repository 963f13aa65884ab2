"""What each declaration of an operation needs of the rooms below, by one import."""

from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.cases import BadSample, Sample
from gtrace.core.ir.cpp import Cpp, of_floats
from gtrace.core.ir.op import Op, Params, define
from gtrace.core.ir.wide_unsigned import ORDER
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind
from gtrace.core.trace.convert import lift

__all__ = [
    "ORDER", "Array", "Aval", "BadSample", "Cpp", "Op", "Params", "Sample", "aval", "bind", "define", "lift",
    "of_floats",
]  # fmt: skip
