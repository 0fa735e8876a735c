"""What all coordinators share: a log of state, timers, and the way to find a coordinator."""
