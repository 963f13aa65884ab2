"""The dtypes of arrays, as users see them: objects that equal torch's, NumPy's, and their names."""

from gtrace.core.base.dtypes import *
from gtrace.core.base.dtypes import DType as DType
from gtrace.core.base.public_names import publish as _publish

_publish(globals(), "gtrace.core.base.dtypes")
