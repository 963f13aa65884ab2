"""Programs as calls of torch, one operation after the other."""
