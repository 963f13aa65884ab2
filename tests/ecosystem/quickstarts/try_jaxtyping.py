"""jaxtyping: annotations of shapes and dtypes, checked at run time."""

import jax.numpy as jnp
from beartype import beartype
from jaxtyping import Array, Float, Int, jaxtyped
from parts import show


@jaxtyped(typechecker=beartype)
def product(x: Float[Array, "n k"], y: Float[Array, "k m"]) -> Float[Array, "n m"]:
    return x @ y


show("accepted", product(jnp.ones((2, 3)), jnp.ones((3, 4))).shape)
for name, x, y in (("shape", jnp.ones((2, 3)), jnp.ones((2, 4))), ("dtype", jnp.ones((2, 3), int), jnp.ones((3, 4)))):
    try:
        product(x, y)
        show(f"refused {name}", 0)
    except Exception:  # noqa: BLE001 - the type of the error is jaxtyping's
        show(f"refused {name}", 1)
show("isinstance", isinstance(jnp.arange(3), Int[Array, "3"]), isinstance(jnp.arange(3), Float[Array, "3"]))
