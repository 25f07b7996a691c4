"""What an event is, and how it becomes bytes and back: pure, and the contract with every other
language.
"""
