"""Iceberg tables on any store that pyarrow opens: how they are written and read, whoever commits them."""
