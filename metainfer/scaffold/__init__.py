"""Makes a repository ready for metainfer: what it would need, what is there already, and what is left to a person."""
