"""Of ``jax.sharding``, the class that programs name in annotations and ``isinstance``."""

from gtrace.jax.adapt import namespace


class Sharding:
    """The class of layouts of arrays over several devices. Arrays here are on one device each."""


__getattr__, __dir__ = namespace("jax.sharding")
