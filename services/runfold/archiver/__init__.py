"""Moves the logs of runs that have ended, or are quiet, from topics to the archive."""
