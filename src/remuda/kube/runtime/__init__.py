"""What every controller lives on: informers, work queue, the observe-plan-apply loop, events, leader election, many writes
at once."""
