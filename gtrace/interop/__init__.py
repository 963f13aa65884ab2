"""Calls between torch and gtrace: torch's functions and modules on Arrays, and gtrace functions in torch."""
