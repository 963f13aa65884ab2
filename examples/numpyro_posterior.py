"""The posterior of a hierarchical logistic regression by numpyro's NUTS, as written for JAX.

    gtrace run --jax examples/numpyro_posterior.py [--quick]    on gtrace
    python examples/numpyro_posterior.py [--quick]              on JAX, if it is installed

Thirty measurements of 569 tumors say which are benign: scikit-learn's data of Wisconsin. The weights have a common
scale, which is unknown too. The last 169 tumors are held out.
"""

from __future__ import annotations

import argparse
import time

try:
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS, log_likelihood
    from sklearn.datasets import load_breast_cancer
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}. Run: pip install --no-deps numpyro multipledispatch tqdm; pip install scikit-learn; "
        "then: gtrace run --jax examples/numpyro_posterior.py"
    ) from missing

WARMUP, DRAWS, CHAINS, KNOWN = 500, 1000, 4, 400


def model(x, y=None):
    """Weights of a common, unknown scale; `y` is 1 for a benign tumor."""
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    offset = numpyro.sample("offset", dist.Normal(0.0, 5.0))
    with numpyro.plate("measurements", x.shape[1]):
        relative = numpyro.sample("relative", dist.Normal(0.0, 1.0))
    weights = numpyro.deterministic("weights", scale * relative)
    with numpyro.plate("tumors", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=offset + x @ weights), obs=y)


def data():
    """Return the measurements, with mean 0 and deviation 1, and the labels."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x[:KNOWN].mean(0)) / x[:KNOWN].std(0)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32)


def main(quick=False):
    begin = time.perf_counter()
    x, y = data()
    draws = 20 if quick else DRAWS
    mcmc = MCMC(NUTS(model), num_warmup=20 if quick else WARMUP, num_samples=draws, num_chains=CHAINS,
                chain_method="sequential", progress_bar=False)  # fmt: skip
    mcmc.run(jax.random.key(0), x[:KNOWN], y[:KNOWN], extra_fields=("num_steps",))
    chains = mcmc.get_samples(group_by_chain=True)
    print(
        f"{CHAINS} chains of {draws} draws, {mcmc.get_extra_fields()['num_steps'].sum()} leapfrog steps: "
        f"{time.perf_counter() - begin:.1f} s"
    )
    for name in ("scale", "offset"):
        print(
            f"{name}: mean {chains[name].mean():.3f}, deviation {chains[name].std():.3f}, "
            f"{effective_sample_size(chains[name]):.0f} effective draws"
        )
    worst = max(float(split_gelman_rubin(chains[name]).max()) for name in ("scale", "offset", "weights"))
    likelihood = log_likelihood(model, mcmc.get_samples(), x[KNOWN:], y[KNOWN:])["y"]
    each = jax.nn.logsumexp(likelihood, axis=0) - jnp.log(len(likelihood))
    right = float((jnp.exp(each) > 0.5).mean())
    print(f"worst R-hat {worst:.3f}; held out: log density {float(each.mean()):.4f} a tumor, {right:.3f} right")
    return right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few draws only")
    main(parser.parse_args().quick)
