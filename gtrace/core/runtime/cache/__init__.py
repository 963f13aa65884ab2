"""Compiled code and measurements on disk."""
