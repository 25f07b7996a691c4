"""The store of large bytes, which events refer to."""
