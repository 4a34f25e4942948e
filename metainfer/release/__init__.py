"""Versions and tags of engines that are on the base branch."""
