"""Neural networks: the functions of jax.nn and torch.nn.functional, and modules with the weights of torch.nn."""

from gtrace.extend import identity as identity
from gtrace.extend import log1mexp as log1mexp
from gtrace.extend import logmeanexp as logmeanexp
from gtrace.extend import ops as _ops
from gtrace.extend import publish as _publish
from gtrace.extend import suggesting as _suggesting
from gtrace.nn import initializers as initializers
from gtrace.nn.activations import *
from gtrace.nn.attention import *
from gtrace.nn.classification import *
from gtrace.nn.convolution import *
from gtrace.nn.layers.attention import *
from gtrace.nn.layers.base import *
from gtrace.nn.layers.containers import *
from gtrace.nn.layers.convolution import *
from gtrace.nn.layers.filters import *
from gtrace.nn.layers.linear import *
from gtrace.nn.layers.normalization import *
from gtrace.nn.layers.precision import *
from gtrace.nn.layers.recurrent import *
from gtrace.nn.layers.summary import *
from gtrace.nn.layers.transformer import *
from gtrace.nn.layers.weights import *
from gtrace.nn.losses import *
from gtrace.nn.normalization import *
from gtrace.nn.regularization import *
from gtrace.nn.sequence_losses import *
from gtrace.nn.softmax_family import *

gelu = _ops.gelu
log_softmax = _ops.log_softmax
logsumexp = _ops.logsumexp
one_hot = _ops.one_hot
relu = _ops.relu
sigmoid = _ops.sigmoid
silu = _ops.silu
softmax = _ops.softmax
softplus = _ops.softplus
tanh = _ops.tanh

__getattr__ = _suggesting("gtrace.nn")
_publish(globals())
