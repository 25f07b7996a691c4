"""Who sends a request: API keys, and tokens of an identity provider."""
