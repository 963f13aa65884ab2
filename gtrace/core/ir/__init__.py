"""What a program is: operations, types, graphs, their text, verifier, signature, simplifications."""
