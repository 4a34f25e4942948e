"""Generates compact, single-path LLM inference engines from a spec and a contract knowledge base."""

__version__ = "0.1.0"
