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
    from gtrace import forks as _forks
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
    from gtrace import tensor_methods as _tensor_methods
    from gtrace import tree as tree
    from gtrace.abstract import *
    from gtrace.aten import operation as _aten
    from gtrace.callbacks import *
    from gtrace.compile.backend import *
    from gtrace.config import *
    from gtrace.control.branches import *
    from gtrace.control.loops import *
    from gtrace.control.scan import *
    from gtrace.define_op import *
    from gtrace.dtypes import *
    from gtrace.errors import *
    from gtrace.export import *
    from gtrace.flattening import *
    from gtrace.hotpath import enable_hot_path_detection as enable_hot_path_detection
    from gtrace.jit import *
    from gtrace.modules import *
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
    from gtrace.ops import methods as _methods
    from gtrace.ops.activations import *
    from gtrace.ops.arrange import *
    from gtrace.ops.complex import *
    from gtrace.ops.components import *
    from gtrace.ops.create import *
    from gtrace.ops.dtype_info import *
    from gtrace.ops.elementwise import *
    from gtrace.ops.floats import *
    from gtrace.ops.index import *
    from gtrace.ops.linalg import *
    from gtrace.ops.log_sums import *
    from gtrace.ops.logic import *
    from gtrace.ops.normalize import *
    from gtrace.ops.one_hot import *
    from gtrace.ops.parts import *
    from gtrace.ops.places import *
    from gtrace.ops.reduce import *
    from gtrace.ops.scans import *
    from gtrace.ops.shape import *
    from gtrace.ops.sort import *
    from gtrace.ops.unique import *
    from gtrace.saving.arrays import *
    from gtrace.saving.checkpoint import *
    from gtrace.seeding import *
    from gtrace.shard.signals import *
    from gtrace.sharding import device_put as device_put
    from gtrace.sharding import from_process_local as from_process_local
    from gtrace.sharding import with_sharding as with_sharding
    from gtrace.suggestions import suggesting as _suggesting
    from gtrace.torch_autograd import *
    from gtrace.torch_functions import *
    from gtrace.trace.array import *
    from gtrace.trace.convert import *
    from gtrace.transform.checkpoint import *
    from gtrace.transform.closures import *
    from gtrace.transform.custom import *
    from gtrace.transform.jacobian import *
    from gtrace.transform.jvp import *
    from gtrace.transform.transpose import *
    from gtrace.transform.vjp import *
    from gtrace.transform.vmap import *
    from gtrace.version import __version__ as __version__
finally:
    if _collects:
        if not _gc.get_freeze_count():
            # What was made goes to the oldest generation, or the next collection of a young one looks through all of
            # it. Where the program has made nothing before, it stays out of later ones too: each would take 150 ms.
            _gc.freeze()
            if not _first:
                _gc.unfreeze()
        _gc.enable()

tree_map = tree.map
__getattr__ = _suggesting("gtrace")
