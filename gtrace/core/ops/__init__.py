"""The primitives, and the functions made of them, such as ``ops.sum``.

A family of functions has a file, which publishes them in its ``__all__``. What only declares or prepares operations is
imported from its own file.
"""

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
