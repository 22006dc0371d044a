"""Cold reads: the older part of the log, from the tables that the pipeline has written."""

from penstock.engines.lake.bounded_sql import LakeQuestions
from penstock.engines.lake.export import HistoryExport
from penstock.engines.lake.hourly_figures import Figures
from penstock.engines.lake.log import ColdLog
from penstock.engines.lake.reader import LakeReader, LakeUnreadable, open_lake
from penstock.engines.lake.why_deliveries import Deliveries

__all__ = [
    "ColdLog",
    "Deliveries",
    "Figures",
    "HistoryExport",
    "LakeQuestions",
    "LakeReader",
    "LakeUnreadable",
    "open_lake",
]
