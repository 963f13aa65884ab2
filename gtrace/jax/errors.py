"""The names of ``jax.errors``: gtrace's errors for the same mistakes."""

from gtrace import errors
from gtrace.jax.adapt import namespace

JAXTypeError = errors.GtraceError
JAXIndexError = errors.BoundsError
JaxRuntimeError = errors.ExecutionError
ConcretizationTypeError = TracerArrayConversionError = errors.ConcretizationError
TracerBoolConversionError = TracerIntegerConversionError = NonConcreteBooleanIndexError = errors.ConcretizationError
UnexpectedTracerError = errors.LeakError
KeyReuseError = errors.KeyReuseError
InconclusiveDimensionOperation = errors.ArgumentError
JaxprTypeError = errors.GraphError

__getattr__, __dir__ = namespace("jax.errors")
