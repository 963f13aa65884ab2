"""The names of ``jax.ffi``, calls of native code by XLA, so that libraries that have such code load."""

from functools import partial

from gtrace.jax.extend.absent import absent_function, refuse_native

absent = partial(absent_function, refuse=refuse_native)

build_ffi_lowering_function, ffi_call, ffi_lowering = map(
    absent, ("build_ffi_lowering_function", "ffi_call", "ffi_lowering")
)
include_dir, pycapsule, register_ffi_target = map(absent, ("include_dir", "pycapsule", "register_ffi_target"))
register_ffi_target_as_batch_partitionable = absent("register_ffi_target_as_batch_partitionable")
register_ffi_type, register_ffi_type_id = absent("register_ffi_type"), absent("register_ffi_type_id")

__all__ = [
    "build_ffi_lowering_function", "ffi_call", "ffi_lowering", "include_dir", "pycapsule", "register_ffi_target",
    "register_ffi_target_as_batch_partitionable", "register_ffi_type", "register_ffi_type_id",
]  # fmt: skip
