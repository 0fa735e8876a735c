"""What administrators do: topics, cluster, groups, subscriptions, transactions, tokens."""
