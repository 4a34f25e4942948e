"""Generation: from a spec, checkpoint facts and routed knowledge to the bytes of one engine."""

GENERATOR_VERSION = 1
"""Part of every input hash. Raise it when the same inputs begin to give other bytes."""
