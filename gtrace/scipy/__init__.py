"""Functions under SciPy's names: ``gtrace.scipy.linalg``, ``stats``, ``signal``, ``optimize``, ``cluster``."""

from gtrace.scipy import cluster as cluster
from gtrace.scipy import linalg as linalg
from gtrace.scipy import optimize as optimize
from gtrace.scipy import signal as signal
from gtrace.scipy import stats as stats
