"""What every gang shares, whatever its kind: whose fault an end was, budgets per cause, hangs, and the cheapest remedy that
cures.

No TrainingJob here: that is `core.training`, the first kind of gang.
"""
