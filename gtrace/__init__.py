"""gtrace: JAX-style functional tracing that compiles to PyTorch. ``import gtrace as gt``.

What a module publishes, it names in its own ``__all__``. Type checkers take a name for public if it comes by a star or
is imported as itself.
"""

import gc as _gc
import sys as _sys

# what an import makes stays; collections meanwhile, which look through all of torch, take longer than the import
_collects = _gc.isenabled()
_first = "torch" not in _sys.modules
_gc.disable()
try:
    from gtrace import dtypes as dtypes
    from gtrace import errors as errors
    from gtrace import extend as extend
    from gtrace import hotpath as hotpath
    from gtrace import image as image
    from gtrace import ir as ir
    from gtrace import lax as lax
    from gtrace import nn as nn
    from gtrace import optim as optim
    from gtrace import random as random
    from gtrace import segments as segments
    from gtrace import sharding as sharding
    from gtrace import signal as signal
    from gtrace import special as special
    from gtrace import tree as tree
    from gtrace.core.backends.backend import *
    from gtrace.core.base import forks as _forks
    from gtrace.core.base import free_threading as _free_threading
    from gtrace.core.base import garbage as _garbage
    from gtrace.core.base.config import *
    from gtrace.core.base.dtypes import *
    from gtrace.core.base.public_names import publish as _publish
    from gtrace.core.base.suggestions import suggesting as _suggesting
    from gtrace.core.ops import methods as _methods
    from gtrace.core.ops.activations import *
    from gtrace.core.ops.arg_reduce import *
    from gtrace.core.ops.complex_numbers import *
    from gtrace.core.ops.complex_parts import *
    from gtrace.core.ops.create import *
    from gtrace.core.ops.cumulative import *
    from gtrace.core.ops.dtype_info import *
    from gtrace.core.ops.elementwise import *
    from gtrace.core.ops.floats import *
    from gtrace.core.ops.index import *
    from gtrace.core.ops.join_split import *
    from gtrace.core.ops.linalg import *
    from gtrace.core.ops.log_sums import *
    from gtrace.core.ops.logic import *
    from gtrace.core.ops.one_hot_vectors import *
    from gtrace.core.ops.pad_tile import *
    from gtrace.core.ops.reduce import *
    from gtrace.core.ops.shape import *
    from gtrace.core.ops.softmax_functions import *
    from gtrace.core.ops.sorting import *
    from gtrace.core.ops.trigonometry import *
    from gtrace.core.ops.unique import *
    from gtrace.core.ops.variance import *
    from gtrace.core.trace.array import *
    from gtrace.core.trace.convert import *
    from gtrace.core.transform.callbacks import *
    from gtrace.core.transform.checkpoint import *
    from gtrace.core.transform.closures import *
    from gtrace.core.transform.control.branches import *
    from gtrace.core.transform.control.loops import *
    from gtrace.core.transform.control.scan import *
    from gtrace.core.transform.custom import *
    from gtrace.core.transform.eval_shape import *
    from gtrace.core.transform.jacobian import *
    from gtrace.core.transform.jit import *
    from gtrace.core.transform.jvp import *
    from gtrace.core.transform.ravel import *
    from gtrace.core.transform.transpose import *
    from gtrace.core.transform.vjp import *
    from gtrace.core.transform.vmap import *
    from gtrace.distributed.signal_config import *
    from gtrace.distributed.signals import *
    from gtrace.errors import *
    from gtrace.hotpath import enable_hot_path_detection as enable_hot_path_detection
    from gtrace.interop import autograd_functions as _autograd_functions
    from gtrace.interop import tensor_methods as _tensor_methods
    from gtrace.interop.aten import operation as _aten
    from gtrace.interop.define_op import *
    from gtrace.interop.torch_autograd import *
    from gtrace.interop.torch_functions import *
    from gtrace.nn import torch_losses as _torch_losses
    from gtrace.nn.torch_modules import *
    from gtrace.numpy import fft as fft
    from gtrace.numpy import linalg as linalg
    from gtrace.observe import compile_log as _compile_log
    from gtrace.observe import instruction_log as _instruction_log
    from gtrace.observe import progress as _progress
    from gtrace.observe import status as _status
    from gtrace.observe import trace_log as _trace_log
    from gtrace.observe.explain import *
    from gtrace.observe.memory import *
    from gtrace.observe.profile import *
    from gtrace.observe.stats import *
    from gtrace.observe.training import *
    from gtrace.random.seeding import *
    from gtrace.saving.arrays import *
    from gtrace.saving.checkpoint import *
    from gtrace.saving.export import *
    from gtrace.sharding import device_put as device_put
    from gtrace.sharding import from_process_local as from_process_local
    from gtrace.sharding import with_sharding as with_sharding
    from gtrace.version import __version__ as __version__

    tree_map = tree.map
    __getattr__ = _suggesting("gtrace")
    _publish(globals(), "gtrace")
    _publish(vars(extend), "gtrace")
    _free_threading.check_lock()
    _garbage.freeze_imports(_first)
finally:
    if _collects:
        _gc.enable()
