"""Array, recording, capture, forcing."""
