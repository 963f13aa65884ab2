"""Arrays, checkpoints and exported functions as files."""
