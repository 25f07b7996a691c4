"""Clients of the HTTP API, with the verbs of `client/`."""
