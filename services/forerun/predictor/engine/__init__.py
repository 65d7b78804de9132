"""The predictor's decisions: pure, deterministic, bounded. Events go in, calibrated candidates come out."""
