"""Observers: logs, timelines, profiles and the ledger of costs. They listen to the bus; nothing depends on them."""
