"""Tests of the harbour."""
