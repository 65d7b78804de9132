"""Ways to call a tool, behind one port."""
