"""Observers: logs of what happened, and the ledger of what it cost. They listen to the bus; nothing depends on them."""
