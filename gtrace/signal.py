"""Named regions of a program and named arrays. YAML or `gt.register_config` says what a name means."""

from gtrace.core.base.public_names import publish as _publish
from gtrace.distributed.signal import *

_publish(globals(), "gtrace.distributed.signal")
