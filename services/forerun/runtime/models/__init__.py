"""Models: one port, the providers behind it, and the layer that retries and races requests over replicas."""
