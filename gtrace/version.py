"""The version of the package: part of the key of everything that is kept on disk."""

__version__ = "0.1.0"
