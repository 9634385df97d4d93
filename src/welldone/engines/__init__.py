"""Where answers come from: engines that we start, watch and stop, and the models they serve."""
