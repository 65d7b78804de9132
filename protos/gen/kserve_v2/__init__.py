"""Generated from protos/third_party/kserve_v2: import kserve_v2.<file>_pb2."""
