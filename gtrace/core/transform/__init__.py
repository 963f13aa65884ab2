"""jit, grad, jvp, vmap, custom rules, checkpoint, scan, cond, while."""
