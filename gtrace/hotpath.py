"""Hot paths by a fixed count: turn automatic compilation on, or drive a detector by hand."""

from gtrace.core.runtime.hotpath import *
from gtrace.core.runtime.hotpath import __all__ as __all__
