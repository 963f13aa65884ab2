"""The primitives, and the functions made of them."""
