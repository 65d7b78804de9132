"""The capacity function on recorded arrivals, in virtual time: `make bench-capacity`."""
