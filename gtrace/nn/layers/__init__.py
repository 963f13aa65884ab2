"""Modules: parameters and their function, as one frozen pytree."""
