"""The plan of faults and abuse: what is done to real servers, what they did, and the bars that they must keep."""
