"""Discrete Fourier transforms, as in ``numpy.fft``."""

from gtrace.numpy.fft.transforms import *
