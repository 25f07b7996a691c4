"""Logs of runs as a table in an open format, in a directory or an object store."""
