"""The protocols that a broker serves, each independent of the others."""
