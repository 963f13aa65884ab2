"""einops: rearrangements, reductions, and a product by names."""

import jax
import jax.numpy as jnp
from einops import einsum, pack, rearrange, reduce, repeat
from parts import show

x = jnp.sin(jnp.arange(2 * 4 * 6.0)).reshape(2, 4, 6)
show("rearrange", rearrange(x, "b (h p) (w q) -> b (h w) (p q)", p=2, q=3)[1])
show("reduce", reduce(x, "b h w -> b w", "max"), jax.grad(lambda x: reduce(x**2, "b h w -> ", "mean"))(x)[0, 0])
show("repeat", repeat(x[0, 0], "w -> w c", c=2))
show("einsum", einsum(x, x, "b h w, c h w -> b c"))
show("pack", pack([x[0], x[0, 0]], "* w")[0].sum(0))
