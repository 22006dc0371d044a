"""Measurements of Penstock, each against its floor in the same run: `./penstock bench NAME --json`.

One module a benchmark, each with `main`. `bench/rig/` holds what they share: load generators, bare
floors and peers, each in a process of its own so that CPU time can be told apart.
"""
