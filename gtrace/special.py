"""Special functions, under the names of jax.scipy.special and torch.special."""

from gtrace.ops.activations import erf as erf
from gtrace.ops.activations import sigmoid as _sigmoid
from gtrace.ops.bessel_functions import bessel_j0 as bessel_j0
from gtrace.ops.bessel_functions import bessel_j1 as bessel_j1
from gtrace.ops.bessel_functions import bessel_y0 as bessel_y0
from gtrace.ops.bessel_functions import bessel_y1 as bessel_y1
from gtrace.ops.bessel_functions import i0 as i0
from gtrace.ops.bessel_functions import i0e as i0e
from gtrace.ops.bessel_functions import i1 as i1
from gtrace.ops.bessel_functions import i1e as i1e
from gtrace.ops.bessel_functions import modified_bessel_k0 as modified_bessel_k0
from gtrace.ops.bessel_functions import modified_bessel_k1 as modified_bessel_k1
from gtrace.ops.bessel_functions import scaled_modified_bessel_k0 as scaled_modified_bessel_k0
from gtrace.ops.bessel_functions import scaled_modified_bessel_k1 as scaled_modified_bessel_k1
from gtrace.ops.entropies import entr as entr
from gtrace.ops.entropies import kl_div as kl_div
from gtrace.ops.entropies import logit as logit
from gtrace.ops.entropies import rel_entr as rel_entr
from gtrace.ops.entropies import xlog1py as xlog1py
from gtrace.ops.entropies import xlogy as xlogy
from gtrace.ops.error_functions import erfc as erfc
from gtrace.ops.error_functions import erfcx as erfcx
from gtrace.ops.error_functions import log_ndtr as log_ndtr
from gtrace.ops.error_functions import ndtr as ndtr
from gtrace.ops.error_functions import ndtri as ndtri
from gtrace.ops.gamma_functions import beta as beta
from gtrace.ops.gamma_functions import betaln as betaln
from gtrace.ops.gamma_functions import digamma as digamma
from gtrace.ops.gamma_functions import factorial as factorial
from gtrace.ops.gamma_functions import gamma as gamma
from gtrace.ops.gamma_functions import gammainc as gammainc
from gtrace.ops.gamma_functions import gammaincc as gammaincc
from gtrace.ops.gamma_functions import gammaln as gammaln
from gtrace.ops.gamma_functions import multigammaln as multigammaln
from gtrace.ops.gamma_functions import polygamma as polygamma
from gtrace.ops.gamma_functions import zeta as zeta
from gtrace.ops.normalize import log_softmax as log_softmax
from gtrace.ops.normalize import softmax as softmax
from gtrace.ops.reduce import logsumexp as logsumexp
from gtrace.ops.special import erfinv as erfinv
from gtrace.ops.special_integrals import betainc as betainc
from gtrace.ops.special_integrals import exp1 as exp1
from gtrace.ops.special_integrals import expi as expi
from gtrace.ops.special_integrals import expn as expn

expit = _sigmoid
