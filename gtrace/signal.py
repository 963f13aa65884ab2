"""Named regions of a program and named arrays. YAML or `gt.register_config` says what a name means."""

from gtrace.distributed.signal import *
