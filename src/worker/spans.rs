//! OpenTelemetry spans of jobs, sent with OTLP over HTTP: `receive` for each read that brings jobs, and `process` for each job, linked to
//! the span of its producer, which the header `traceparent` names.
//!
//! Names and attributes are those of the semantic conventions for messaging (opentelemetry.io/docs/specs/semconv/messaging). What the
//! conventions do not know begins with `dripd.`.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Link, Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span, SpanData};
use tracing::warn;

use super::fetch::Fetched;
use super::once_a_minute::OnceAMinute;
use super::{Job, Outcome};
use crate::config::variable;
use crate::model::route::Route;
use crate::store::keys::GROUP;

/// The variables of which one must be set: where the collector listens.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

const BAD_ENVIRONMENT: &str = "a variable OTEL_EXPORTER_OTLP_* cannot be used; an endpoint is http://HOST:PORT";

/// The headers of a job that say which span it belongs to (W3C Trace Context).
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// The spans of a worker.
#[derive(Debug, Clone)]
pub struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// Where the jobs of a worker come from.
pub(super) struct Source<'a> {
    pub(super) route: &'a Route,
    pub(super) worker: &'a str,
    pub(super) partition: u8,
}

/// A read that brought jobs.
#[derive(Debug, Clone)]
pub(super) struct Received {
    tracer: SdkTracer,
    context: SpanContext,
}

/// The span of a job that runs. It ends with its outcome, or, as an error, where it is dropped.
pub(super) struct Process(Option<Span>);

impl Spans {
    /// Begin to send spans where the environment says so, with the variables of OpenTelemetry. `None`: it does not.
    ///
    /// # Errors
    ///
    /// One of the variables holds what cannot be used: a text that shows no value.
    pub fn from_environment() -> Result<Option<Self>, String> {
        let is = |name, value| variable(name).is_some_and(|text| text.eq_ignore_ascii_case(value));
        if ENDPOINTS.iter().all(|name| variable(name).is_none())
            || is("OTEL_SDK_DISABLED", "true")
            || is("OTEL_TRACES_EXPORTER", "none")
        {
            return Ok(None);
        }
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Not the reason: it shows the address, which may hold a password.
        let exporter = SpanExporter::builder().with_http().build().map_err(|_| BAD_ENVIRONMENT.to_owned())?;
        let exporter = Reported { exporter, failures: OnceAMinute::default() };
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
        Ok(Some(Self { tracer: provider.tracer("dripd"), provider }))
    }

    /// Send what has not been sent yet.
    pub fn flush(&self, within: Duration) {
        let _ = self.provider.shutdown_with_timeout(within); // the log has said why
    }

    /// A read has brought jobs.
    pub(super) fn received(&self, source: &Source, fetched: &Fetched) -> Received {
        let Fetched { began, entries, .. } = fetched;
        let mut attributes = source.attributes("receive");
        attributes.push(KeyValue::new("messaging.batch.message_count", whole(entries.len() as u64)));
        let producers = entries.iter().filter_map(|entry| producer(&entry.headers));
        let builder = self.tracer.span_builder(format!("receive {}", source.route.as_str()));
        let builder = builder.with_kind(SpanKind::Client).with_start_time(*began).with_attributes(attributes);
        let builder = builder.with_links(producers.map(Link::with_context).collect());
        let span = builder.start_with_context(&self.tracer, &Context::new());
        Received { tracer: self.tracer.clone(), context: span.span_context().clone() }
    }
}

impl Received {
    /// A job of this read begins to run. Its span is a child of the producer's, so that one trace shows the whole way, or of the read where
    /// the producer named none. The job goes on under it: whoever runs it finds it in `traceparent`.
    pub(super) fn process(&self, source: &Source, waits: &Waits, job: &mut Job) -> Process {
        let mut attributes = source.attributes("process");
        attributes.extend([
            KeyValue::new("messaging.message.id", job.id.clone()),
            KeyValue::new("messaging.message.body.size", whole(job.body.len() as u64)),
            KeyValue::new("dripd.bucket", job.bucket.as_str().to_owned()),
            KeyValue::new("dripd.attempt", whole(job.attempt)),
            KeyValue::new("dripd.cost", whole(job.cost)),
            KeyValue::new("dripd.late_ms", waits.late.as_secs_f64() * 1e3),
            KeyValue::new("dripd.ready_ms", waits.ready.as_secs_f64() * 1e3),
        ]);
        let producer = producer(&job.headers);
        let parent = Context::new().with_remote_span_context(producer.as_ref().unwrap_or(&self.context).clone());
        let builder = self.tracer.span_builder(format!("process {}", source.route.as_str()));
        let builder = builder.with_kind(SpanKind::Consumer).with_attributes(attributes);
        let builder = builder.with_links(producer.into_iter().map(Link::with_context).collect());
        let span = builder.start_with_context(&self.tracer, &parent);
        name_span(span.span_context(), &mut job.headers);
        Process(Some(span))
    }
}

/// How long a job waited before it was taken.
pub(super) struct Waits {
    /// In its bucket, since it was due.
    late: Duration,
    /// In the ready stream.
    ready: Duration,
}

impl Waits {
    /// Of a job that was due and left its bucket then, and is taken now; microseconds since the epoch.
    pub(super) fn of(due_us: u64, at_us: u64) -> Self {
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let between = |from: u64, till: u64| Duration::from_micros(till.saturating_sub(from));
        Self { late: between(due_us, at_us), ready: between(at_us, u64::try_from(now_us).unwrap_or(u64::MAX)) }
    }
}

impl Source<'_> {
    fn attributes(&self, operation: &'static str) -> Vec<KeyValue> {
        vec![
            KeyValue::new("messaging.system", "dripd"),
            KeyValue::new("messaging.operation.name", operation),
            KeyValue::new("messaging.operation.type", operation),
            KeyValue::new("messaging.destination.name", self.route.as_str().to_owned()),
            KeyValue::new("messaging.destination.partition.id", self.partition.to_string()),
            KeyValue::new("messaging.consumer.group.name", GROUP),
            KeyValue::new("messaging.client.id", self.worker.to_owned()),
        ]
    }
}

impl Process {
    /// The job has run.
    pub(super) fn end(mut self, outcome: &Outcome) {
        let Some(mut span) = self.0.take() else { return };
        let (name, reason) = match outcome {
            Outcome::Done => ("done", None),
            Outcome::Failed(reason) => ("failed", Some(reason)),
            Outcome::Dead(reason) => ("dead", Some(reason)),
            Outcome::GivenBack(_, reason) => ("given_back", Some(reason)),
            Outcome::Throttled(_, reason) => ("throttled", Some(reason)),
        };
        if let Some(reason) = reason {
            span.set_attribute(KeyValue::new("error.type", name));
            span.set_status(Status::error(reason.clone()));
        }
    }
}

impl Drop for Process {
    /// Whoever drops a run before its end has lost its lease.
    fn drop(&mut self) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new("error.type", "lease_lost"));
            span.set_status(Status::error("the lease was lost"));
        }
    }
}

/// The span in which a job was pushed, where its headers name one.
fn producer(headers: &[(String, String)]) -> Option<SpanContext> {
    let headers = headers.iter().filter(|(name, _)| TRACE_HEADERS.contains(&name.as_str())).cloned();
    let context =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &headers.collect::<HashMap<_, _>>());
    Some(context.span().span_context().clone()).filter(SpanContext::is_valid)
}

/// Name this span in the headers of a job, instead of the producer's.
fn name_span(span: &SpanContext, headers: &mut Vec<(String, String)>) {
    let mut named = HashMap::new();
    let context = Context::new().with_remote_span_context(span.clone());
    TraceContextPropagator::new().inject_context(&context, &mut named);
    headers.retain(|(name, _)| !TRACE_HEADERS.contains(&name.as_str()));
    headers.extend(
        TRACE_HEADERS.iter().filter_map(|name| named.remove_entry(*name)).filter(|(_, value)| !value.is_empty()),
    );
}

fn whole(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Who sends: `service.name` is dripd unless the environment says another.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = Resource::builder().with_attribute(version);
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let attributes = attributes.to_string_lossy();
    let mut keys = attributes.split(',').filter_map(|pair| pair.split_once('=')).map(|(key, _)| key.trim());
    let is_named = variable("OTEL_SERVICE_NAME").is_some() || keys.any(|key| key == "service.name");
    if is_named { builder.build() } else { builder.with_service_name("dripd").build() }
}

/// An exporter whose failures are in the log, once a minute.
#[derive(Debug)]
struct Reported {
    exporter: SpanExporter,
    failures: OnceAMinute,
}

impl opentelemetry_sdk::trace::SpanExporter for Reported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (spans, sent) = (batch.len(), self.exporter.export(batch).await);
        if let Err(why) = &sent
            && let Some(times) = self.failures.count(spans)
        {
            let why = match why {
                OTelSdkError::InternalFailure(why) => why.clone(),
                why => why.to_string(),
            };
            warn!(
                why,
                spans = times,
                "the collector does not take spans: so many at least are dropped, and the jobs go on"
            );
        }
        sent
    }

    fn shutdown_with_timeout(&self, within: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(within)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
