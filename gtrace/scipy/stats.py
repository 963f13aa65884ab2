"""Statistics under SciPy's names: distributions with their location and scale, and statistics of samples."""

from gtrace.extend import publish as _publish
from gtrace.scipy.continuous_distributions import *
from gtrace.scipy.discrete_distributions import *
from gtrace.scipy.distribution import Distribution as Distribution
from gtrace.scipy.kernel_density import *
from gtrace.scipy.sample_statistics import *
from gtrace.scipy.vector_distributions import *

_publish(globals(), "gtrace.scipy")
