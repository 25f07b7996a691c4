"""The one place that speaks MongoDB: pages, run states, and the pointer to the generation that is read."""
