//! The series of `/metrics`. The series of a route are registered when the router is built: counting a request is then a
//! few atomic additions, and the number of series is bounded by the number of routes.

use std::time::Duration;

use http::StatusCode;
use mw_store::Collector;
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};
use prometheus::{Histogram, IntCounter};

const LATENCY_BUCKETS_SECONDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The registry behind `/metrics`; other parts of the service add their own series to it.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    latency: HistogramVec,
    requests: IntCounterVec,
    pub(crate) in_flight: IntGauge,
    pub(crate) connections: IntGauge,
    pub(crate) clock_jump: IntGauge,
    pub(crate) feed_streams: IntGauge,
    pub(crate) feed_lag: IntGauge,
    pub(crate) shed: IntCounter,
    pub(crate) panics: IntCounter,
}

impl Metrics {
    /// Fails where `registry` has series of these names already.
    pub fn new(registry: Registry) -> Result<Self, prometheus::Error> {
        let latency = HistogramOpts::new(
            "mw_http_request_duration_seconds",
            "Time from the request headers to the response headers, in seconds",
        )
        .buckets(LATENCY_BUCKETS_SECONDS.to_vec());
        let metrics = Self {
            latency: HistogramVec::new(latency, &["route", "method"])?,
            requests: IntCounterVec::new(
                Opts::new("mw_http_requests_total", "Requests that got a response, by class of its status"),
                &["route", "method", "class"],
            )?,
            in_flight: IntGauge::new("mw_http_requests_in_flight", "Requests in flight")?,
            connections: IntGauge::new("mw_http_open_connections", "Open client connections")?,
            clock_jump: IntGauge::new(
                "mw_clock_jump_seconds",
                "How far the wall clock jumped against the monotonic one; background expiry does not follow it",
            )?,
            feed_streams: IntGauge::new(
                "mw_feed_streams",
                "Open streams of the change feed and requests that wait for changes",
            )?,
            feed_lag: IntGauge::new(
                "mw_feed_lag_seconds",
                "Age of the last change sent on the stream of the change feed that is furthest behind; 0 where all have caught up",
            )?,
            shed: IntCounter::new(
                "mw_http_requests_shed_total",
                "Requests refused with 503 because server.max_in_flight or server.max_streams was reached",
            )?,
            panics: IntCounter::new("mw_http_panics_total", "Requests whose handler panicked")?,
            registry,
        };
        metrics.registry.register(Box::new(metrics.latency.clone()))?;
        metrics.registry.register(Box::new(metrics.requests.clone()))?;
        metrics.registry.register(Box::new(metrics.in_flight.clone()))?;
        metrics.registry.register(Box::new(metrics.connections.clone()))?;
        metrics.registry.register(Box::new(metrics.clock_jump.clone()))?;
        metrics.registry.register(Box::new(metrics.feed_streams.clone()))?;
        metrics.registry.register(Box::new(metrics.feed_lag.clone()))?;
        metrics.registry.register(Box::new(metrics.shed.clone()))?;
        metrics.registry.register(Box::new(metrics.panics.clone()))?;
        Ok(metrics)
    }

    /// Adds series of another layer.
    pub(crate) fn add(&self, collectors: Vec<Box<dyn Collector>>) -> Result<(), prometheus::Error> {
        collectors.into_iter().try_for_each(|collector| self.registry.register(collector))
    }

    pub(crate) fn route(&self, route: &str, method: &str) -> RouteMetrics {
        RouteMetrics {
            latency: self.latency.with_label_values(&[route, method]),
            by_status_class: STATUS_CLASSES
                .map(|class| self.requests.with_label_values(&[route, method, class])),
        }
    }

    /// The Prometheus text format.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::with_capacity(64 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

#[derive(Debug)]
pub(crate) struct RouteMetrics {
    latency: Histogram,
    by_status_class: [IntCounter; 5],
}

impl RouteMetrics {
    pub(crate) fn observe(&self, status: StatusCode, took: Duration) {
        self.latency.observe(took.as_secs_f64());
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = self.by_status_class.get(class) {
            counter.inc();
        }
    }
}
