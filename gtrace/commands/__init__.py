"""The command gtrace: a file a command."""
