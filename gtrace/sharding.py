"""Arrays laid out over several processes. Names are those of ``jax.sharding``."""

from gtrace.core.base.public_names import publish as _publish
from gtrace.distributed.sharding import *

_publish(globals(), "gtrace.distributed", "gtrace.core.ir.sharding", "gtrace.core.trace.array")
