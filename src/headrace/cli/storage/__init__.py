"""Commands for the data folders of brokers: logs, stray logs, and the registry that is rebuilt from them."""
