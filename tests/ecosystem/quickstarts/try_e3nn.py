"""e3nn-jax: spherical harmonics, tensor products, and their equivariance."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
from parts import show

x = jnp.array([[0.1, 0.2, 0.9], [-0.3, 0.5, 0.4]])
harmonics = e3nn.spherical_harmonics("0e + 1o + 2e", x, normalize=True)
show("harmonics", harmonics.array)
product = e3nn.tensor_product(harmonics, harmonics, filter_ir_out="0e + 1o")
show("product", product.array[:, :4])
rotation = e3nn.rand_matrix(jax.random.key(0))
one = e3nn.spherical_harmonics("1o", x @ rotation.T, True).array
other = e3nn.spherical_harmonics("1o", x, True).transform_by_matrix(rotation).array
show("equivariance", jnp.abs(one - other).max() < 1e-5)
