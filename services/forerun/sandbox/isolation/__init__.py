"""The ladder of isolation: what each level gives, which ones work on this machine, and how a command starts in one."""
