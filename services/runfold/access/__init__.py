"""How adapters of agent frameworks reach Runfold: over its HTTP API, or on Kafka and MongoDB."""
