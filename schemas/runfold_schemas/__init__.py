"""The events of Runfold and their encoding as bytes. Pure code, and the contract with other
languages.
"""
