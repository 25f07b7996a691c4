"""Erasing all data of a user, and searching for what is left of it."""
