"""Branches and loops."""
