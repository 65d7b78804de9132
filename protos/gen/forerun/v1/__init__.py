"""Generated from protos/forerun/v1: import forerun.v1.<file>_pb2."""
