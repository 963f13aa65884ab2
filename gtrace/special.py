"""Special functions under the names of jax.scipy.special and torch.special."""

from gtrace.ops.gamma_functions import digamma as digamma
from gtrace.ops.gamma_functions import gammainc as gammainc
from gtrace.ops.gamma_functions import gammaincc as gammaincc
from gtrace.ops.gamma_functions import gammaln as gammaln
from gtrace.ops.gamma_functions import polygamma as polygamma
