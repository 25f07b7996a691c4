"""Generates memories from conversations: extracts facts, and consolidates them with the memories of
their scope.

    source -> trigger in a log -> extract -> consolidate -> answer in the log
           -> changes in {prefix}.memories

The model is asked once for each trigger, and its answer is stored as an event, so neither a replay
nor a rebuild asks it again.
"""
