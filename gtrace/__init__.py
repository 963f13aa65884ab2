"""gtrace: JAX-style functional tracing that compiles to PyTorch. ``import gtrace as gt``."""

from torch import bfloat16, bool, float16, float32, float64, int8, int16, int32, int64, uint8

from gtrace import hotpath, random, signal, tree
from gtrace.abstract import ShapeDtypeStruct, eval_shape, make_graph
from gtrace.config import config
from gtrace.control.branches import cond, switch
from gtrace.control.loops import associative_scan, fori_loop, map, while_loop
from gtrace.control.scan import scan
from gtrace.errors import (
    ArgumentError,
    AuditWarning,
    BoundsError,
    CacheError,
    CacheWarning,
    CompileError,
    CompileWarning,
    ConcretizationError,
    ConfigError,
    ConfigWarning,
    DeviceError,
    DtypeError,
    ExecutionError,
    ExportError,
    GraphError,
    GtraceError,
    ImmutableError,
    KeyReuseError,
    LeakError,
    NonFiniteError,
    ShapeError,
)
from gtrace.export import Exported, export, load
from gtrace.hotpath import enable_hot_path_detection
from gtrace.jit import eval, jit
from gtrace.observe import compile_log as _compile_log
from gtrace.observe import instruction_log as _instruction_log
from gtrace.observe.explain import explain
from gtrace.observe.stats import stats
from gtrace.ops import methods as _methods
from gtrace.ops.arrange import pad, repeat, roll, tile, tril, triu
from gtrace.ops.create import (
    arange,
    array,
    asarray,
    astype,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    one_hot,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from gtrace.ops.elementwise import (
    absolute,
    add,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    ceil,
    clip,
    cos,
    cosh,
    divide,
    erf,
    exp,
    expm1,
    floor,
    floor_divide,
    gelu,
    log,
    log1p,
    log2,
    log10,
    maximum,
    minimum,
    multiply,
    power,
    reciprocal,
    relu,
    remainder,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    softplus,
    sqrt,
    square,
    stop_gradient,
    subtract,
    tan,
    tanh,
    trunc,
)
from gtrace.ops.elementwise import neg as negative
from gtrace.ops.index import take, take_along_axis
from gtrace.ops.linalg import dot, einsum, matmul, outer, tensordot, vecdot
from gtrace.ops.logic import (
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    equal,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    signbit,
    where,
)
from gtrace.ops.normalize import log_softmax, softmax
from gtrace.ops.parts import concat, flip, split, stack, unstack
from gtrace.ops.reduce import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    cumsum,
    logsumexp,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from gtrace.ops.shape import (
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    permute_dims,
    ravel,
    reshape,
    squeeze,
    swapaxes,
    transpose,
)
from gtrace.ops.sort import argsort, searchsorted, sort
from gtrace.seeding import rand, randn, seed
from gtrace.shard.signals import ShardConfig, SignalConfig, load_config, register_config
from gtrace.trace.array import Array
from gtrace.trace.convert import from_dlpack, from_numpy, from_torch
from gtrace.transform.checkpoint import checkpoint, checkpoint_policies
from gtrace.transform.custom import custom_jvp, custom_vjp
from gtrace.transform.jacobian import hessian, jacfwd, jacrev
from gtrace.transform.jvp import jvp, linearize
from gtrace.transform.vjp import grad, value_and_grad, vjp
from gtrace.transform.vmap import vmap
from gtrace.version import __version__

abs = absolute
acos, acosh, asin, asinh, atan, atan2, atanh = arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh
concatenate = concat
pow = power
tree_map = tree.map
