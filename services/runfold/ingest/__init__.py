"""HTTP in: agents in any language publish through it. It writes to the log and never to MongoDB."""
