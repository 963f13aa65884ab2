"""From the program of all processes to the program of one."""
