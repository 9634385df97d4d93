"""Random faults over many clients, whose every token says whose it is: nothing is mixed up, lost or said twice."""
