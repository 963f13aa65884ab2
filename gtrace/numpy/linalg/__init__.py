"""Linear algebra: decompositions, solvers, norms. All take stacks of matrices in the last two axes.

The functions are torch's; their derivatives, of every order, and their batching are derived from torch. As in JAX, a
matrix without an inverse or Cholesky factor gives infinities, NaN or rounding errors. It raises nothing, because
reading values would end the recording.
"""

from gtrace.core.base.public_names import publish as _publish
from gtrace.core.ops.linalg import matmul as matmul
from gtrace.core.ops.linalg import outer as outer
from gtrace.core.ops.linalg import tensordot as tensordot
from gtrace.core.ops.linalg import vecdot as vecdot
from gtrace.core.ops.shape import matrix_transpose as matrix_transpose
from gtrace.numpy.linalg.decompositions import *
from gtrace.numpy.linalg.norms import *
from gtrace.numpy.linalg.solving import *
from gtrace.numpy.products import cross as cross

_publish(globals())
