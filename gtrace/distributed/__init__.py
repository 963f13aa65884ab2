"""Meshes, shardings, signals, plans."""
