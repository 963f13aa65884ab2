"""What knows nothing of programs: errors, settings, events, dtypes, locks, pytrees, private names of torch."""
