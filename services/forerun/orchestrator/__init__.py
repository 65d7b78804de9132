"""The orchestrator: sessions and the way of a call."""
