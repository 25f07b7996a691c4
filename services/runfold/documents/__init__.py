"""Sessions, memories and generation as JSON bodies, for `api/` and `remote/`."""
