"""The names of ``jax.errors``: gtrace's errors for the same mistakes."""

from gtrace import errors
from gtrace.jax.adapt import namespace

JAXTypeError = errors.GtraceError
JaxRuntimeError = errors.ExecutionError
ConcretizationTypeError = errors.ConcretizationError
TracerArrayConversionError = errors.ArrayConcretizationError
TracerBoolConversionError = errors.BoolConcretizationError
TracerIntegerConversionError = errors.IntegerConcretizationError
JAXIndexError = NonConcreteBooleanIndexError = errors.MaskConcretizationError
UnexpectedTracerError = errors.LeakError
KeyReuseError = errors.KeyReuseError
InconclusiveDimensionOperation = errors.ArgumentError
JaxprTypeError = errors.GraphError

__getattr__, __dir__ = namespace("jax.errors")
