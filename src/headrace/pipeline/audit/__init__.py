"""The job `audit`: verify that nothing was lost, duplicated, reordered or altered."""
