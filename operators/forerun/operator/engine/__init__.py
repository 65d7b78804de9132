"""What the operator decides. Pure: objects and messages in, what shall be written out."""
