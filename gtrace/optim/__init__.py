"""Optimizers under optax's contract and names: gradient transformations, chained, with explicit state."""

from gtrace.extend import publish as _publish
from gtrace.extend import suggesting as _suggesting
from gtrace.optim.accumulation import *
from gtrace.optim.base import *
from gtrace.optim.clipping import *
from gtrace.optim.combining import *
from gtrace.optim.factorized import *
from gtrace.optim.masking import *
from gtrace.optim.moments import *
from gtrace.optim.muon_update import *
from gtrace.optim.optimizers import *
from gtrace.optim.scaling import *
from gtrace.optim.schedules import *

__getattr__ = _suggesting("gtrace.optim")
_publish(globals())
