"""Placement: gangs whole, down to the exact device set."""
