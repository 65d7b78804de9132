"""The level `pod`: commands of one session in a runner of its own, and the runner itself."""
