"""`forerun models`: what is served, rendered, checked and measured."""
