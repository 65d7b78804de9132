"""The custom resource definitions: made from the contract's messages and one table of bounds, rules and defaults."""
