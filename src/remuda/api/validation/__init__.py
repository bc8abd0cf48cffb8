"""What a user may ask for: checks of our kinds beyond their types, each a `Refusal` with the field and the fix.

`validate` is the entry for every kind. Checks that need the cluster's state belong to the controllers.
"""
