"""Custom kinds: what a definition says, and what that means for the bodies of its objects. Pure."""
