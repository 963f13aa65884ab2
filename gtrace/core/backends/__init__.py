"""What runs a program: the interpreter, Inductor, C++ of our own, and the schedule of their calls."""
