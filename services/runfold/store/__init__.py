"""The only package that uses MongoDB: pages, run states, and the pointer to the current edition."""
