"""Hot paths by a fixed count: turn automatic compilation on, or drive a detector by hand."""

from gtrace.core.runtime.hotpath import *
