"""Array, recording, capture."""
