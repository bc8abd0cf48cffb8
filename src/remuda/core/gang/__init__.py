"""What every gang shares, whatever its kind: its pods as they are seen and written, whose fault an end was, budgets per cause,
and the cheapest remedy that cures.

No TrainingJob here: that is `core.training`, the first kind of gang.
"""
