"""The four doors to the world: Clock, Disk, Network, Entropy; supervision of tasks."""
