"""What knows nothing of programs: errors, settings, events, dtypes, locks, pytrees, torch's names."""
