"""quimb: the contraction of a tensor network, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import quimb.tensor as qtn
from parts import show

arrays = [jnp.sin(jnp.arange(n) + k * 1.0).reshape(shape).astype(jnp.float32) for k, (n, shape) in
          enumerate([(6, (2, 3)), (12, (3, 4)), (8, (4, 2))])]  # fmt: skip


def closed(arrays):
    network = qtn.TensorNetwork([qtn.Tensor(x, inds) for x, inds in zip(arrays, ("ab", "bc", "ca"), strict=True)])
    return network.contract()


show("contraction", closed(arrays), np.trace(np.linalg.multi_dot([np.asarray(x) for x in arrays])))
show("gradient", jax.grad(closed)(arrays)[0])
