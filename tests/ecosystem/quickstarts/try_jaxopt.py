"""jaxopt: L-BFGS, projected gradients, and a derivative through a solution."""

import jax
import jax.numpy as jnp
import jaxopt
from jaxopt.projection import projection_simplex
from parts import show

rosenbrock = lambda x: ((1 - x[:-1]) ** 2 + 10 * (x[1:] - x[:-1] ** 2) ** 2).sum()
show("lbfgs", jaxopt.LBFGS(rosenbrock, maxiter=100, tol=1e-5).run(jnp.zeros(3)).params)
target = jnp.array([0.6, 0.7, -0.2])
solver = jaxopt.ProjectedGradient(lambda x: ((x - target) ** 2).sum(), projection_simplex, maxiter=100)
show("simplex", solver.run(jnp.ones(3) / 3).params)
a, b = jnp.sin(jnp.arange(12.0)).reshape(4, 3), jnp.arange(4.0)
ridge = jaxopt.GradientDescent(lambda w, s: ((a @ w - b) ** 2).sum() + s * (w**2).sum(), maxiter=2000, tol=1e-6)
show("implicit", jax.jacobian(lambda s: ridge.run(jnp.zeros(3), s).params)(1.0))
show("bisection", jaxopt.Bisection(lambda x: x**3 - 2, 0.0, 2.0).run().params)
