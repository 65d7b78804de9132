"""The demo's tools: real servers and commands that need no network, each as slow as its measured counterpart."""
