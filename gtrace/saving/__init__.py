"""Arrays and training states as files."""
