"""The words: ids, names, configs and errors. Pure; imports nothing of the world."""
