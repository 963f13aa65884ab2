"""Modules: parameters and the function that uses them, as one frozen pytree."""
