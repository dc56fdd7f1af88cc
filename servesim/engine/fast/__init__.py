"""Fast mode: the same results as the plain engine, to the nanosecond, but computed faster. Imported by the cluster; its
cost protocol is also imported by cost models."""
