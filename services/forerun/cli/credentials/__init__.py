"""`forerun credentials`: what the parts of an installation prove themselves with, made once and inside the cluster."""
