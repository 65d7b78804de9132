"""Answers of models: one, or the best of several candidates."""
