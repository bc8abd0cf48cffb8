"""The record of one failure from its first signal to its verified cure: opened, amended, counted, closed, told, forgotten.

Writes the story down and decides no remedy.
"""
