"""Front doors that need no code change."""
