"""The commands of the CLI, one small module each; they translate between people and the packages."""
