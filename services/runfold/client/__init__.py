"""What agents call: runs, sessions and memories on Kafka alone, with the base dependencies."""
