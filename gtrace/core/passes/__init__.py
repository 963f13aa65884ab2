"""What a whole program is rewritten to: canonical form, fusions, layouts, where a program is cut."""
