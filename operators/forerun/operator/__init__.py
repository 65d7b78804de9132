"""Custom resources into policies, tool servers and sizes of pools: the Kubernetes operator."""
