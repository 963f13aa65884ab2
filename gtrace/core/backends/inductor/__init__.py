"""Programs by torch's Inductor, called directly."""
