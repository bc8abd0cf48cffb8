"""What HTTP clients say and hear: paths, queries, bodies, tables, errors. Turns text into values; decides nothing."""
