"""Cold reads: the older part of the log, from the Parquet files that the pipeline has written."""

from penstock.storage.lake.cold import ColdLog
from penstock.storage.lake.deliveries import Deliveries
from penstock.storage.lake.lake import Lake, LakeUnreadable, open_lake

__all__ = ["ColdLog", "Deliveries", "Lake", "LakeUnreadable", "open_lake"]
