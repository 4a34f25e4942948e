"""Speed, measured from outside, against the limits of the machine and against peers in the same run."""
