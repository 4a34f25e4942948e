"""Gates: whether an engine holds what its spec and its contracts promise, measured from outside of it."""
