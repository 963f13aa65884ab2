"""The names of ``jax.experimental.pallas``, so that libraries with kernels of it load. A kernel cannot be run."""

from functools import partial

from gtrace.jax.extend.absent import absent_function, refuse_kernel

absent = partial(absent_function, refuse=refuse_kernel)

BlockSpec, CostEstimate, GridSpec = map(absent, ("BlockSpec", "CostEstimate", "GridSpec"))
cdiv, debug_print, ds, dslice, load = map(absent, ("cdiv", "debug_print", "ds", "dslice", "load"))
num_programs, pallas_call, program_id = map(absent, ("num_programs", "pallas_call", "program_id"))
store, when = map(absent, ("store", "when"))

__all__ = [
    "BlockSpec", "CostEstimate", "GridSpec", "cdiv", "debug_print", "ds", "dslice", "load", "num_programs",
    "pallas_call", "program_id", "store", "when",
]  # fmt: skip
