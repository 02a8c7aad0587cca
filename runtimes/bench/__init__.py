"""What the runtimes measure about themselves for `swarmd bench`: figures only, what they must be is swarmd's business."""
