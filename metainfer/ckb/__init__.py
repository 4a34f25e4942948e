"""The contract knowledge base: what the generator knows, how it is chosen, and how it is checked."""
