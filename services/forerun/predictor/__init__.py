"""The predictor: learns from the journal what an agent does next, and publishes candidates. Nobody waits for it."""
