"""Consumer groups of both protocols, their assignors, and committed offsets."""
