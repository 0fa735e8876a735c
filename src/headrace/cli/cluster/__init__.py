"""Commands for the cluster: show and check it, move partitions, elect leaders."""
