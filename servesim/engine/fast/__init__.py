"""Fast mode: the results of the plain engine to the nanosecond, sooner. Imported by the cluster; its protocols also by
the modules that hold fast classes of allocators and costs."""
