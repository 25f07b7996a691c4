"""Encryption of what agents say: a key for each subject, and erasure by destroying it."""
