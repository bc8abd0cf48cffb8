"""Taking Remuda off a cluster: what it left on others' objects, what it installed, and in which order all of it goes. Pure."""
