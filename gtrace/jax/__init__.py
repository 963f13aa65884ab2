"""JAX programs by a change of import: ``import gtrace.jax as jax``, ``import gtrace.jax.numpy as jnp``.

The names are those of JAX, and the functions gtrace's own, with JAX's parameters. docs/jax-names.md lists what
there is and what differs. ``gtrace.jax.install()`` makes ``import jax`` mean this package.
"""

import os as _os

from gtrace import Array as Array
from gtrace import ShapeDtypeStruct as ShapeDtypeStruct
from gtrace.jax import _src as _src
from gtrace.jax import ad_checkpoint as ad_checkpoint
from gtrace.jax import api as _api
from gtrace.jax import api_util as api_util
from gtrace.jax import array_methods as _array_methods
from gtrace.jax import core as core
from gtrace.jax import custom_batching as custom_batching
from gtrace.jax import custom_derivatives as custom_derivatives
from gtrace.jax import debug as debug
from gtrace.jax import device_functions as _devices
from gtrace.jax import distributed as distributed
from gtrace.jax import dlpack as dlpack
from gtrace.jax import dtypes as dtypes
from gtrace.jax import errors as errors
from gtrace.jax import export as export
from gtrace.jax import extend as extend
from gtrace.jax import ffi as ffi
from gtrace.jax import flatten_util as flatten_util
from gtrace.jax import image as image
from gtrace.jax import interpreters as interpreters
from gtrace.jax import lax as lax
from gtrace.jax import lib as lib
from gtrace.jax import meshes as _meshes
from gtrace.jax import monitoring as monitoring
from gtrace.jax import nn as nn
from gtrace.jax import numpy as numpy
from gtrace.jax import ops as ops
from gtrace.jax import profiler as profiler
from gtrace.jax import random as random
from gtrace.jax import ref as ref
from gtrace.jax import scipy as scipy
from gtrace.jax import settings as _settings
from gtrace.jax import sharding as sharding
from gtrace.jax import stages as stages
from gtrace.jax import tree as tree
from gtrace.jax import tree_util as tree_util
from gtrace.jax import typing as typing
from gtrace.jax import version as version
from gtrace.jax.adapt import __version__ as __version__
from gtrace.jax.adapt import __version_info__ as __version_info__
from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.custom_derivatives import custom_jvp as custom_jvp
from gtrace.jax.custom_derivatives import custom_vjp as custom_vjp
from gtrace.jax.device_functions import devices as devices
from gtrace.jax.importing import install as install
from gtrace.jax.importing import uninstall as uninstall
from gtrace.jax.settings import config as config
from gtrace.jax.sharding import make_mesh as make_mesh

_array_methods.add()
config.follow_environment(_os.environ)
__getattr__, __dir__ = _namespace("jax", vars(_api), vars(ref), vars(_devices), vars(_meshes), vars(_settings))
