"""Runs one command under an isolation level, with limits, and leaves nothing behind."""
