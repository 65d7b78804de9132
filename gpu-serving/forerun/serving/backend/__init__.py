"""What runs inside the model server: stateful targets and drafts, and the loop that couples them."""
