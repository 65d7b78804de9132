"""The demo's agents. Their model is a seeded script that branches on what it observes. It is no language model."""
