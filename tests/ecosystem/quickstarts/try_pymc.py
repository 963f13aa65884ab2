"""PyMC by pytensor's JAX back end: a model's density and gradient, and samplers of JAX for it."""

import os

os.environ["PYTENSOR_FLAGS"] = "cxx="

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from parts import show
from pymc.sampling.jax import get_jaxified_graph, get_jaxified_logp, sample_numpyro_nuts

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
x = rng.normal(size=30)
y = 1.0 + 2.0 * x + 0.5 * rng.normal(size=30)

with pm.Model() as model:
    intercept = pm.Normal("intercept", 0, 10)
    slope = pm.Normal("slope", 0, 10)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", intercept + slope * x, sigma, observed=y)

logp = get_jaxified_logp(model, negative_logp=False)
point = [np.asarray(v) for v in model.initial_point().values()]
show("density", logp(point), jax.jit(logp)([np.asarray(0.5), np.asarray(1.5), np.asarray(-0.3)]))
show("gradient", *jax.grad(lambda p: logp(p))(point))
show("hessian", *jax.tree.leaves(jax.hessian(lambda p: logp(p))(point)))
compiled = model.compile_logp(mode="JAX")
show("compiled", compiled(model.initial_point()), model.compile_dlogp(mode="JAX")(model.initial_point()))

a, b = pt.matrix("a"), pt.vector("b")
square = a @ a.T + pt.eye(3)
outputs = [
    pt.linalg.solve(square, b), pt.linalg.cholesky(square), pt.linalg.slogdet(square)[1], pt.special.softmax(b),
    pt.switch(b > 0, pt.gammaln(1 + pt.abs(b)), pt.erf(b)), pt.sort(b)[::-1], pt.set_subtensor(b[1:], 7.0),
    pt.math.logsumexp(a, axis=0), b.cumsum(), pt.argmax(a, axis=1),
]  # fmt: skip
run = pytensor.function([a, b], outputs, mode="JAX")
show("tensors", *run(rng.normal(size=(3, 3)), np.array([0.3, -1.0, 2.0])))

steps = pytensor.scan(lambda row, total: 0.5 * total + row, sequences=[a], outputs_info=[b], return_updates=False)
show("scan", pytensor.function([a, b], steps, mode="JAX")(np.arange(12.0).reshape(4, 3), np.ones(3)))

made = get_jaxified_graph(inputs=[a, b], outputs=[pt.tanh(a) @ b])
show("graph", *jax.jit(made)(np.eye(3), np.arange(3.0)))

with model:
    trace = sample_numpyro_nuts(
        draws=400, tune=400, chains=2, chain_method="vectorized", random_seed=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
posterior = trace.posterior
show("posterior means ~0.15", *(posterior[name].mean().item() for name in ("intercept", "slope", "sigma")))
show("posterior deviations ~0.05", *(posterior[name].std().item() for name in ("intercept", "slope", "sigma")))
