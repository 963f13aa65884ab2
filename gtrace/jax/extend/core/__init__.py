"""Of ``jax.extend.core``, the classes of programs and their parts, and the state of tracing."""

from gtrace.jax.avals import mapped_aval as mapped_aval
from gtrace.jax.avals import unmapped_aval as unmapped_aval
from gtrace.jax.extend.absent import Effect as Effect
from gtrace.jax.extend.absent import OpaqueTraceState as OpaqueTraceState
from gtrace.jax.extend.absent import Token as Token
from gtrace.jax.extend.absent import Trace as Trace
from gtrace.jax.extend.absent import TraceTag as TraceTag
from gtrace.jax.extend.absent import concrete_or_error as concrete_or_error
from gtrace.jax.extend.absent import find_top_trace as find_top_trace
from gtrace.jax.extend.absent import get_opaque_trace_state as get_opaque_trace_state
from gtrace.jax.extend.absent import set_current_trace as set_current_trace
from gtrace.jax.extend.absent import take_current_trace as take_current_trace
from gtrace.jax.extend.core import primitives as primitives
from gtrace.jax.jaxprs import ClosedJaxpr as ClosedJaxpr
from gtrace.jax.jaxprs import DropVar as DropVar
from gtrace.jax.jaxprs import Jaxpr as Jaxpr
from gtrace.jax.jaxprs import JaxprEqn as JaxprEqn
from gtrace.jax.jaxprs import Literal as Literal
from gtrace.jax.jaxprs import Var as Var
from gtrace.jax.jaxprs import jaxpr_as_fun as jaxpr_as_fun
from gtrace.jax.jaxprs import new_jaxpr_eqn as new_jaxpr_eqn
from gtrace.jax.primitives import Primitive as Primitive
