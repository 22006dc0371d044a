"""The own API: publish, read, tail, streams, consumers, why, export."""
