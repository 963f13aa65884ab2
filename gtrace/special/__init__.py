"""Special functions, under the names of jax.scipy.special and torch.special."""

from gtrace.ops.activations import erf as erf
from gtrace.ops.activations import sigmoid as _sigmoid
from gtrace.ops.bessel_functions import *
from gtrace.ops.combinatorics import *
from gtrace.ops.entropies import *
from gtrace.ops.error_functions import *
from gtrace.ops.gamma_functions import *
from gtrace.ops.hypergeometric import *
from gtrace.ops.log_sums import logsumexp as logsumexp
from gtrace.ops.normalize import log_softmax as log_softmax
from gtrace.ops.normalize import softmax as softmax
from gtrace.ops.oscillating_integrals import *
from gtrace.ops.special import erfinv as erfinv
from gtrace.ops.special_integrals import *

expit = _sigmoid
