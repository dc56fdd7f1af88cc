"""Fast mode: the results of the plain engine to the nanosecond, sooner. Imported by the cluster; its protocol of costs
also by cost models."""
