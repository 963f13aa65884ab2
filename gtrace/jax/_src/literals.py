"""``jax._src.literals``: classes of numbers with dtypes, which programs ask for with ``isinstance``."""

from gtrace.jax.extend.absent import absent_class

LiteralArray, TypedNdArray = absent_class("LiteralArray"), absent_class("TypedNdArray")

__all__ = ["LiteralArray", "TypedNdArray"]
