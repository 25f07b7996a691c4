"""The projector: catalog -> active runs -> pages and run records.

service      the process: a worker on the current edition, health and metrics
worker       tails the active runs of its partitions, folds new records, parks quiet runs
catalog      folds the lives of runs from the catalog
active       one active run: its fold, and how it is loaded from the stored state
writer       writes pages and states to MongoDB, dead letters and ended lives to Kafka
unsaved      the states that wait to be saved, and the changes that wait to be forwarded
forwarding   forwards changes of shared state, memories and banks
shared       folds the shared topics, with `sessions` and `memories`
sweep        finds new records and runs that were not announced
rebuild      writes the next edition and switches to it
"""
