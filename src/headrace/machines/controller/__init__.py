"""Decisions of the controller: elections, placement, reassignment, co-located topics."""
