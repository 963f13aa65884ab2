"""Signals and, later, what they mean on several processes."""
