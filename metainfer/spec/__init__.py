"""The spec: what a user declares about one deployment."""
