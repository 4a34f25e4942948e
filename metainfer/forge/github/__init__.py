"""GitHub as a forge: pull requests through its API, commits through Git. Nothing here is imported without need."""
