"""Sums and rules of a small ferry harbour."""
