"""The projector: catalog -> active runs -> pages and run records.

ownership   which runs are ours: a consumer group on the catalog worker      tails the active runs,
folds what comes, parks what is quiet, sweeps for what nobody announced active      one active run:
its fold, and how it is loaded from what is stored writer      pages and states to MongoDB, dead
letters and ended lives to Kafka service     the process: a worker on the current edition, health
and metrics
"""
