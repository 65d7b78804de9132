"""`forerun replay`: what the platform would have done for runs that were recorded."""
