"""torch's functions and modules on Arrays, and functions of gtrace in torch."""
