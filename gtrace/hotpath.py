"""Hot paths by a fixed count: turn automatic compilation on, or drive a detector by hand."""

from gtrace.core.base.public_names import publish as _publish
from gtrace.core.runtime.hotpath import *

_publish(globals(), "gtrace.core.runtime")
