"""What HTTP clients say and hear: paths, queries, bodies, errors. Turns text into values; decides nothing."""
