"""Of ``jax.lib.xla_extension``, the error of a program that fails."""

from gtrace.errors import ExecutionError as XlaRuntimeError

__all__ = ["XlaRuntimeError"]
