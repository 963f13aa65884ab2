"""The array functions under their standard names: those of the Python array API (2024.12) that gtrace has so far.

``x.__array_namespace__()`` returns this module. A name of the standard that is missing here is not supported yet.
"""

from math import e as e
from math import inf as inf
from math import nan as nan
from math import pi as pi

from gtrace.dtypes import *
from gtrace.ops.activations import *
from gtrace.ops.arrange import *
from gtrace.ops.complex import *
from gtrace.ops.components import *
from gtrace.ops.create import *
from gtrace.ops.elementwise import *
from gtrace.ops.index import *
from gtrace.ops.linalg import *
from gtrace.ops.logic import *
from gtrace.ops.normalize import *
from gtrace.ops.parts import *
from gtrace.ops.reduce import *
from gtrace.ops.shape import *
from gtrace.ops.sort import *
from gtrace.trace.array import Array as _Array
from gtrace.trace.convert import from_dlpack as from_dlpack

ndarray = _Array
newaxis = None
