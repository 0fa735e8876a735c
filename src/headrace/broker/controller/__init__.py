"""The controller: elections, placement, and moves of partitions."""
