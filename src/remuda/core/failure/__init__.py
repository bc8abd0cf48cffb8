"""Failure: signals -> ledger -> verdict -> remedy, and the budgets that bound it."""
