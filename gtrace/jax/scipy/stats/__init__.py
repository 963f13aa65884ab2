"""The modules and names of ``jax.scipy.stats``: those of ``gtrace.scipy.stats``."""

from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.scipy.stats import bernoulli as bernoulli
from gtrace.jax.scipy.stats import beta as beta
from gtrace.jax.scipy.stats import betabinom as betabinom
from gtrace.jax.scipy.stats import binom as binom
from gtrace.jax.scipy.stats import cauchy as cauchy
from gtrace.jax.scipy.stats import chi2 as chi2
from gtrace.jax.scipy.stats import dirichlet as dirichlet
from gtrace.jax.scipy.stats import expon as expon
from gtrace.jax.scipy.stats import gamma as gamma
from gtrace.jax.scipy.stats import gennorm as gennorm
from gtrace.jax.scipy.stats import geom as geom
from gtrace.jax.scipy.stats import gumbel_l as gumbel_l
from gtrace.jax.scipy.stats import gumbel_r as gumbel_r
from gtrace.jax.scipy.stats import laplace as laplace
from gtrace.jax.scipy.stats import logistic as logistic
from gtrace.jax.scipy.stats import multinomial as multinomial
from gtrace.jax.scipy.stats import multivariate_normal as multivariate_normal
from gtrace.jax.scipy.stats import nbinom as nbinom
from gtrace.jax.scipy.stats import norm as norm
from gtrace.jax.scipy.stats import pareto as pareto
from gtrace.jax.scipy.stats import poisson as poisson
from gtrace.jax.scipy.stats import t as t
from gtrace.jax.scipy.stats import truncnorm as truncnorm
from gtrace.jax.scipy.stats import uniform as uniform
from gtrace.jax.scipy.stats import vonmises as vonmises
from gtrace.jax.scipy.stats import wrapcauchy as wrapcauchy
from gtrace.scipy import stats as _ours

__getattr__, __dir__ = _namespace("jax.scipy.stats", _ours)
