"""Operations: how one is declared and recorded, and the functions that are made of them."""

from gtrace.core import ops
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.op import REGISTRY, Op, define
from gtrace.core.ops.elementwise import identity
from gtrace.core.ops.gather import gather_op, index_axis, index_place
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.log_sums import log1mexp, logmeanexp
from gtrace.core.trace.bind import bind, bind_all, distinct, emit_all

__all__ = [
    "Aval", "Op", "REGISTRY", "aval", "bind", "bind_all", "define", "distinct",
    "emit_all", "gather_op", "identity", "index_axis", "index_place", "log1mexp", "logmeanexp",
    "ops", "slice_axis",
]  # fmt: skip
