"""Versioned state of sessions: immutable versions, branches that fork in constant time, compare-and-set commits."""
