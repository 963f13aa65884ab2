"""Programs, the policy that compiles them, their tiers; the cache on disk; the worker."""
