"""Programs and loops as C++ of our own."""
