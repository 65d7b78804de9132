"""Models on NVIDIA Triton: profiles, the model repository rendered from them, and what runs inside the server."""
