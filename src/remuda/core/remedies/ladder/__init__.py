"""One incident's climb: which rung is next, whether it may be begun, its orders, its probe, its soak. `climb_ladder` is the
entry."""
