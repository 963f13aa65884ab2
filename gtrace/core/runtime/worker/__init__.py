"""Compiling beside the program: the process that does it, and what it may cost."""
