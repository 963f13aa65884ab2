"""Operations: how one is declared and recorded, and functions that are made of them."""

from gtrace.core import ops
from gtrace.core.ir.op import REGISTRY, define
from gtrace.core.ops.elementwise import identity
from gtrace.core.ops.gather import gather_op, index_axis, index_place
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.log_sums import log1mexp, logmeanexp
from gtrace.core.trace.bind import bind, bind_all, distinct, emit_all

__all__ = [
    "REGISTRY", "bind", "bind_all", "define", "distinct", "emit_all", "gather_op", "identity", "index_axis",
    "index_place", "log1mexp", "logmeanexp", "ops", "slice_axis",
]  # fmt: skip
