"""Devices as data: machine models and fault codes. Pure; the tables are JSON files of this package."""
