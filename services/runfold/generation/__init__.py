"""Memories out of what was said: facts are extracted, and consolidated with what the scope knows
already.

    source -> trigger in a log -> extract -> consolidate -> answer in the log -> changes in {prefix}.memories

A model is asked once for each trigger, and what it answers is an event: no replay and no rebuild
asks it again.
"""
