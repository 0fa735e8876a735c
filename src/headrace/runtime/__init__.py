"""The system interfaces Clock, Disk, Network and Entropy; tasks, worker processes, files and permissions."""
