"""Certifies finished speculations before they may be committed, and audits committed ones afterwards."""
