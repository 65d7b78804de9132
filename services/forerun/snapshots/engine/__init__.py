"""What versioned state means: trees, branches, lines, differences and what is garbage. No I/O, no clock."""
