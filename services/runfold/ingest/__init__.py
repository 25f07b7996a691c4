"""HTTP in: what agents in any language publish through. It speaks to the log only, never to
MongoDB.
"""
