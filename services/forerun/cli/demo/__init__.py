"""`forerun demo`: two scripted agents on real tools, run sequentially, in ordered parallel and with Forerun."""
