"""A small language model as one more engine of the predictor: a second guess where statistics are unsure."""
