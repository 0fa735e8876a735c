"""The protocol front ends, each independent of the others."""
