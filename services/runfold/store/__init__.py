"""The one place that speaks MongoDB: pages, run states, and the pointer to the edition that is
read.
"""
