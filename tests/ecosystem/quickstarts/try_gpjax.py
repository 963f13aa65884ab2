"""GPJax: Gaussian processes, exact, for classes, and sparse ones: fitted, conditioned and sampled."""

import gpjax as gpx
import jax
import jax.numpy as jnp
import optax
from parts import show

jax.config.update("jax_enable_x64", True)

x = jnp.linspace(-2.0, 2.0, 20)[:, None]
y = jnp.sin(3 * x) + 0.1 * jnp.cos(17 * x)
data, tests = gpx.Dataset(X=x, y=y), jnp.linspace(-2.5, 2.5, 7)[:, None]


def numbers(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]


kernel = gpx.kernels.Matern32(lengthscale=0.5, n_dims=1)
prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Constant(), kernel=kernel)
show("prior", prior.predict(tests).mean, prior.predict(tests).covariance())
model = prior * gpx.likelihoods.Gaussian()
show("evidence", gpx.objectives.conjugate_mll(model, data), gpx.objectives.conjugate_loocv(model, data))


def loss(model, data):
    return -gpx.objectives.conjugate_mll(model, data)


fitted, history = gpx.fit(
    model=model, objective=loss, train_data=data, optim=optax.adam(0.05), num_iters=30, verbose=False
)
show("fit", history[::5], *numbers(fitted))
posterior = fitted.condition(data)
latent = posterior(tests)
show("posterior", latent.mean, jnp.diag(latent.covariance()), posterior.log_marginal_likelihood)
show("samples", fitted.sample_approx(2, data, jax.random.key(1), num_features=50)(tests))

sums = gpx.kernels.RBF(n_dims=1) + gpx.kernels.Periodic(period=1.5) * gpx.kernels.Linear()
show("kernels", sums.gram(x[:5]).to_dense() if hasattr(sums.gram(x[:5]), "to_dense") else sums.gram(x[:5]).as_matrix())

classes = gpx.Dataset(X=x, y=(y > 0).astype(jnp.float64))
classifier = (prior * gpx.likelihoods.Bernoulli()).init_latent(classes.n)
best, history = gpx.fit(
    model=classifier, objective=lambda m, d: -gpx.objectives.log_posterior_density(m, d), train_data=classes,
    optim=optax.adam(0.1), num_iters=20, verbose=False,
)  # fmt: skip
show("classes", history[::5], best.condition(classes)(tests).mean)

q = gpx.variational_families.VariationalGaussian(model=model, inducing_inputs=jnp.linspace(-2.0, 2.0, 5)[:, None])
trained, history = gpx.fit(
    model=q, objective=lambda q, d: -gpx.objectives.elbo(q, d), train_data=data, optim=optax.adam(0.02), num_iters=20,
    batch_size=8, key=jax.random.key(3), verbose=False,
)  # fmt: skip
show("sparse", history[::5], trained.predict(tests).mean)
