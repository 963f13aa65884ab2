"""Whole programs drawn at random, each run by torch and by gtrace in every form, and compared.

`python tests/fuzz --seconds 600` draws until the time is over. A program is text that calls the functions of
`vocabulary`, which torch and gtrace both have. A difference is reduced to the smallest program that still shows it.
"""
