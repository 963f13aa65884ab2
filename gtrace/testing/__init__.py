"""Property-based tests of programs: strategies for hypothesis, and checks. Needs ``pip install 'gtrace[testing]'``."""

from gtrace.core.base.public_names import publish as _publish
from gtrace.testing.checks import assert_same_program, check_grads, check_jit, check_vmap
from gtrace.testing.closeness import assert_close
from gtrace.testing.compiles import Compiles, assert_no_recompile, count_compiles
from gtrace.testing.graph_strategies import SMOOTH, Program, as_function, drawable, graphs, programs
from gtrace.testing.operations import (
    check_batching,
    check_compiled,
    check_complex,
    check_declaration,
    check_dtypes,
    check_empty_and_0d,
    check_gradient_types,
    check_gradients,
    check_inference,
    check_op,
    check_precision,
    check_reference,
    check_refusal,
    check_special_values,
)
from gtrace.testing.strategies import (
    arguments,
    arrays,
    arrays_like,
    dtypes,
    mutually_broadcastable_shapes,
    numbers,
    pytrees,
    shapes,
)
from gtrace.testing.variants import isomorphic, near_twins, rearrangements

_publish(globals())
