"""Assembly: the only place that constructs servers, agents, nodes and controllers and joins them. Decides nothing."""
