"""Session workspaces: directory trees with copy-on-write forks that are merged or dropped."""
