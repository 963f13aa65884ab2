"""The functions of jax.lax under JAX's names, unless NumPy has them with the same meaning."""

from gtrace.core.base.public_names import publish as _publish
from gtrace.core.base.suggestions import suggesting as _suggesting
from gtrace.core.transform.control.branches import *
from gtrace.core.transform.control.loops import *
from gtrace.core.transform.control.scan import *
from gtrace.lax import linalg as linalg
from gtrace.lax.collectives import *
from gtrace.lax.control import *
from gtrace.lax.elementwise import *
from gtrace.lax.options import *
from gtrace.lax.products import *
from gtrace.lax.reductions import *
from gtrace.lax.scattering import *
from gtrace.lax.shapes import *
from gtrace.lax.slicing import *
from gtrace.lax.special import *
from gtrace.lax.window_shapes import *
from gtrace.lax.windows import *

__getattr__ = _suggesting("gtrace.lax")
_publish(globals())
