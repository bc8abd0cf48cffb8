"""`remuda demo`: the heart of Remuda in one command, on real processes and fake GPUs, with every promise checked."""
