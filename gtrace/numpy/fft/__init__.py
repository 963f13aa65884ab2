"""Discrete Fourier transforms, as in ``numpy.fft``."""

from gtrace.core.base.public_names import publish as _publish
from gtrace.numpy.fft.transforms import *

_publish(globals())
