"""Special functions, under the names of jax.scipy.special and torch.special."""

from gtrace.core.ops.activations import erf as erf
from gtrace.core.ops.activations import sigmoid as _sigmoid
from gtrace.core.ops.draw_functions import erfinv as erfinv
from gtrace.core.ops.log_sums import logsumexp as logsumexp
from gtrace.core.ops.softmax_functions import log_softmax as log_softmax
from gtrace.core.ops.softmax_functions import softmax as softmax
from gtrace.special.bessel_functions import *
from gtrace.special.combinatorics import *
from gtrace.special.entropies import *
from gtrace.special.error_functions import *
from gtrace.special.gamma_functions import *
from gtrace.special.hypergeometric import *
from gtrace.special.oscillating_integrals import *
from gtrace.special.special_integrals import *

expit = _sigmoid
