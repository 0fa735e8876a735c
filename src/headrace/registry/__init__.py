"""The cluster's truth: versioned keys with compare-and-set."""
