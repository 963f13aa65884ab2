"""Neural networks: the functions of jax.nn and torch.nn.functional, and modules with the weights of torch.nn."""

from gtrace.core.base.public_names import publish as _publish
from gtrace.core.base.suggestions import suggesting as _suggesting
from gtrace.core.ops.activations import gelu as gelu
from gtrace.core.ops.activations import relu as relu
from gtrace.core.ops.activations import sigmoid as sigmoid
from gtrace.core.ops.activations import silu as silu
from gtrace.core.ops.activations import softplus as softplus
from gtrace.core.ops.elementwise import identity as identity
from gtrace.core.ops.log_sums import log1mexp as log1mexp
from gtrace.core.ops.log_sums import logmeanexp as logmeanexp
from gtrace.core.ops.log_sums import logsumexp as logsumexp
from gtrace.core.ops.one_hot_vectors import one_hot as one_hot
from gtrace.core.ops.softmax_functions import log_softmax as log_softmax
from gtrace.core.ops.softmax_functions import softmax as softmax
from gtrace.core.ops.trigonometry import tanh as tanh
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

__getattr__ = _suggesting("gtrace.nn")
_publish(globals())
