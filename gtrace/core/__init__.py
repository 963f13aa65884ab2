"""The machine, nine rungs: each imports only those before it."""
