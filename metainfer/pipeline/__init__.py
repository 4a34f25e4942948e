"""The run: from a spec to a pull request, one step after the other, each recorded."""
