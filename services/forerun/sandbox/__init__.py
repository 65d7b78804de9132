"""The sandbox service: runs tools by HTTP, MCP, Python and commands; isolates them; forks workspaces."""
