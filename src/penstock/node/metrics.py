"""`/metrics`: the counts of a running node in Prometheus' text format.

Nothing is counted for this page alone: the parts keep plain integers, and they are read here when
somebody asks. prometheus-client is imported then, not at start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.api.context import Context
from penstock.api.describing import operation
from penstock.core.metering import Histogram, Sample
from penstock.http.exchange import Request, Response

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class Metrics:
    """Shows what the parts have counted."""

    def __init__(
        self,
        context: Context,
        samples: Callable[[], Iterator[Sample]],
        histograms: dict[str, tuple[str, Histogram]],
        *,
        public: bool,
    ) -> None:
        self._context, self._samples, self._histograms, self._public = context, samples, histograms, public

    @operation("Counts in Prometheus' format.", answers={200: None}, media="text/plain")
    def __call__(self, request: Request) -> Response:
        """Answer with all of them; a token is needed unless `metrics.public` is set."""
        from prometheus_client import CONTENT_TYPE_LATEST, GC_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
        from prometheus_client.exposition import generate_latest

        if not self._public:
            self._context.caller(request)
        registry = CollectorRegistry()
        for collector in (self, PROCESS_COLLECTOR, GC_COLLECTOR):
            registry.register(collector)
        return Response(200, generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    def collect(self) -> Iterator[Metric]:
        """What prometheus-client asks a collector for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for kind, name, meaning, value, labels in self._samples():
            family = families.get(name)
            if family is None:
                make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                family = families[name] = make(f"penstock_{name}", meaning, labels=list(labels))
            family.add_metric(list(labels.values()), value)
        yield from families.values()
        for name, (meaning, histogram) in self._histograms.items():
            yield HistogramMetricFamily(
                f"penstock_{name}", meaning, buckets=histogram.cumulative(), sum_value=histogram.total
            )
