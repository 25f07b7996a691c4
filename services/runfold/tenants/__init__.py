"""The tenants of an installation, each with topics, a database and quotas of its own."""
