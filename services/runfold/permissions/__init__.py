"""What the principal of a request may do with runs, sessions and memories."""
