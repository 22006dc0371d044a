"""Load generators, floors, peers and reports: what the benchmarks are put together from."""
