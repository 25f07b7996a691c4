"""The HTTP routes of sessions, memories and generation, and all routes as one service."""
