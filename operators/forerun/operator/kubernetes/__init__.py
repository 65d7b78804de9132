"""A thin client of the Kubernetes API: what the operator needs and nothing else (docs/adr says why)."""
