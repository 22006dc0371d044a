"""The command line: `./penstock --help`."""
