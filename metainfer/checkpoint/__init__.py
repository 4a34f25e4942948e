"""Models: where they come from, the one folder they become, and the facts read from it."""
