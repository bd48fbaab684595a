//! The spans of `dripd work`, as a collector decodes them.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message as _;

use super::work::WORK;
use super::work_http::Hook;
use super::{STOPS_WITHIN, Shell, Work};
use crate::rig::{Daemon, eventually};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PRODUCER: &str = "00f067aa0ba902b7";

/// A worker whose spans go to a collector there.
fn traced(shell: &Shell, collector: &str, args: &[&str], more: &[(&str, &str)]) -> Work {
    let args: Vec<&str> = ["work"].into_iter().chain(args.iter().copied()).collect();
    let mut command: Command = shell.command(&args);
    command.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector).env("OTEL_BSP_SCHEDULE_DELAY", "50");
    command.envs(more.iter().copied());
    Work::spawn(shell, command)
}

/// The spans that a collector gets, until there are so many, and the attributes of who sent them.
fn collected(collector: &Hook, count: usize) -> (Vec<Span>, Vec<KeyValue>) {
    let (mut spans, mut resource) = (Vec::new(), Vec::new());
    while spans.len() < count {
        let request = ExportTraceServiceRequest::decode(&collector.next().job[..]).expect("a request of OTLP");
        for group in request.resource_spans {
            resource = group.resource.expect("who sent it").attributes;
            spans.extend(group.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    (spans, resource)
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|one| one.key == key)?.value.clone()?.value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(n) => n.to_string(),
        Value::DoubleValue(n) => n.to_string(),
        other => panic!("{key} is {other:?}"),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[test]
fn spans_of_a_read_and_of_a_job_are_linked_to_the_producer_and_the_receiver_goes_on_under_them() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let (collector, hook) = (Hook::start(|_, _| "200 OK"), Hook::start(|_, _| "204 Fine"));
    let parent = format!("traceparent: 00-{TRACE}-{PRODUCER}-01");
    let push = ["push", "sms:a", "hello", "--cost", "3", "--header", &parent, "--header", "tracestate: shop=7"];
    assert_eq!(shell.run(&push).0, 0);
    eventually("it is ready", || shell.case.stream("ready").len() == 1);
    let began = SystemTime::now().duration_since(UNIX_EPOCH).expect("now").as_nanos() as u64;
    let waited = Instant::now();
    std::thread::sleep(Duration::from_millis(300)); // what is measured: a wait in the ready stream
    let worker = traced(&shell, &collector.url, &["--http", &hook.url], &[]);
    let (spans, resource) = collected(&collector, 2);
    assert_eq!(attribute(&resource, "service.name").as_deref(), Some("dripd"));
    let (receive, process) = (named(&spans, "receive default"), named(&spans, "process default"));
    let ([receive], [process]) = (&receive[..], &process[..]) else { panic!("{spans:?}") };
    for span in [receive, process] {
        let [link] = &span.links[..] else { panic!("{span:?}") };
        assert_eq!((hex(&link.trace_id), hex(&link.span_id)), (TRACE.to_owned(), PRODUCER.to_owned()));
        let operation = span.name.split(' ').next();
        let said = |key| attribute(&span.attributes, key);
        assert_eq!(said("messaging.system").as_deref(), Some("dripd"));
        assert_eq!(said("messaging.operation.name").as_deref(), operation);
        assert_eq!(said("messaging.operation.type").as_deref(), operation);
        assert_eq!(said("messaging.destination.name").as_deref(), Some("default"));
        assert_eq!(said("messaging.consumer.group.name").as_deref(), Some("workers"));
        assert!(span.start_time_unix_nano >= began && span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
    }
    assert_eq!([receive.kind(), process.kind()], [SpanKind::Client, SpanKind::Consumer]);
    assert_eq!(attribute(&receive.attributes, "messaging.batch.message_count").as_deref(), Some("1"));
    assert_eq!((hex(&process.trace_id), hex(&process.parent_span_id)), (TRACE.to_owned(), PRODUCER.to_owned()));
    assert_eq!(process.trace_state, "shop=7");
    assert!(process.status.as_ref().is_none_or(|status| status.code() == StatusCode::Unset), "{process:?}");
    let post = hook.next();
    let said = |key| attribute(&process.attributes, key);
    assert_eq!(said("messaging.message.id"), Some(post.head["drip-id"].clone()));
    assert_eq!(["dripd.bucket", "dripd.attempt", "dripd.cost"].map(said), ["sms:a", "1", "3"].map(|s| Some(s.into())));
    let ready: f64 = said("dripd.ready_ms").expect("the wait").parse().expect("a number");
    assert!(ready >= 300.0 && ready < waited.elapsed().as_secs_f64() * 1e3 + 1e3, "{ready}");
    assert!(said("dripd.late_ms").is_some());
    assert_eq!(post.head["traceparent"], format!("00-{TRACE}-{}-01", hex(&process.span_id)));
    assert_eq!(post.head["tracestate"], "shop=7");
    assert_eq!(worker.stop().0, Some(0));
}

#[test]
fn a_job_that_failed_is_an_error_and_one_without_a_producer_belongs_to_its_read() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let collector = Hook::start(|_, _| "200 OK");
    let name = [("OTEL_SERVICE_NAME", "senders")];
    let command = "test $DRIPD_ATTEMPT = 2 && echo $DRIPD_HEADER_TRACEPARENT > parent";
    let worker = traced(&shell, &collector.url, &["--exec", command], &name);
    shell.case.lpush("b", &["job"]);
    let (spans, resource) = collected(&collector, 4);
    assert_eq!(attribute(&resource, "service.name").as_deref(), Some("senders"));
    let (receives, processes) = (named(&spans, "receive default"), named(&spans, "process default"));
    let [failed, done] = &processes[..] else { panic!("{spans:?}") };
    assert_eq!(attribute(&failed.attributes, "error.type").as_deref(), Some("failed"));
    let status = failed.status.clone().expect("a status");
    assert_eq!((status.code(), status.message.as_str()), (StatusCode::Error, "exit code 1"));
    assert_eq!(attribute(&done.attributes, "dripd.attempt").as_deref(), Some("2"));
    assert_eq!(attribute(&done.attributes, "error.type"), None);
    for process in [failed, done] {
        assert!(process.links.is_empty());
        let read = receives.iter().find(|read| read.span_id == process.parent_span_id).expect("its read");
        assert_eq!(read.trace_id, process.trace_id);
    }
    let parent = std::fs::read_to_string(shell.home().join("parent")).expect("what the command was told");
    assert_eq!(parent.trim(), format!("00-{}-{}-01", hex(&done.trace_id), hex(&done.span_id)));
    assert_eq!(worker.stop().0, Some(0));
}

#[test]
fn what_was_not_sent_yet_is_sent_at_the_end_and_what_the_producer_does_not_sample_never() {
    let shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let (collector, hook) = (Hook::start(|_, _| "200 OK"), Hook::start(|_, _| "204 Fine"));
    let worker = traced(&shell, &collector.url, &["--http", &hook.url], &[("OTEL_BSP_SCHEDULE_DELAY", "3600000")]);
    let parent = format!("traceparent: 00-{TRACE}-{PRODUCER}-00");
    assert_eq!(shell.run(&["push", "b", "quiet", "--header", &parent]).0, 0);
    let post = hook.next();
    let told = &post.head["traceparent"];
    assert!(told.starts_with(&format!("00-{TRACE}-")) && told.ends_with("-00"), "{told}");
    let (code, took, log) = worker.stop();
    assert!(code == Some(0) && took < STOPS_WITHIN, "{code:?} after {took:?}: {log}");
    let (spans, _) = collected(&collector, 1);
    assert_eq!(spans.iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["receive default"]);
}

#[test]
fn a_collector_that_is_away_costs_a_line_a_minute_and_no_job() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let began = Instant::now();
    let nobody = format!("http://127.0.0.1:{}/v1/traces", crate::rig::free_port());
    let worker = traced(&shell, &nobody, &["--exec", "true"], &[]);
    for n in 0..20 {
        shell.case.lpush("b", &[&n.to_string()]);
        eventually("it is done", || worker.log().matches(" done ").count() > n);
    }
    eventually("it is said", || worker.log().contains("the collector does not take spans"));
    let (code, took, log) = worker.stop();
    assert!(code == Some(0) && took < STOPS_WITHIN, "{code:?} after {took:?}: {log}");
    let minutes = began.elapsed().as_secs() / 60;
    assert!(log.matches("the collector does not take spans").count() as u64 <= 1 + minutes, "{log}");
}

#[test]
fn a_collector_that_never_answers_does_not_hold_up_the_end() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let worker = traced(&shell, &url, &["--exec", "true"], &[]);
    shell.case.lpush("b", &["job"]);
    let _asked = silent.accept().expect("it asks");
    eventually("it is done", || worker.log().contains("done"));
    let (code, took, log) = worker.stop();
    assert!(code == Some(0) && took < STOPS_WITHIN, "{code:?} after {took:?}: {log}");
}

#[test]
fn an_address_that_cannot_be_used_is_said_at_the_start_and_no_address_sends_nothing() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let mut command = shell.command(&["work", "--exec", "true"]);
    let ended = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@[bad").output().expect("it ran");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(2) && said.contains("OTEL_EXPORTER_OTLP_"), "{ended:?}");
    assert!(!said.contains("secret"), "{said}");
    let collector = Hook::start(|_, _| "200 OK");
    let off = [("OTEL_SDK_DISABLED", "true")];
    let worker = traced(&shell, &collector.url, &["--exec", "test -z \"$DRIPD_HEADER_TRACEPARENT\""], &off);
    shell.case.lpush("b", &["job"]);
    eventually("it is done", || worker.log().contains("done"));
    assert_eq!(worker.stop().0, Some(0));
    assert!(collector.is_quiet(), "and none was sent");
}
