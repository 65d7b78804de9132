"""`forerun plan`: looks at plans before they run."""
