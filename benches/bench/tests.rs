//! Claims about the instrument. Whether its figures are good is for a quiet machine; that it measures is for every one.
#![allow(
    unused_imports,
    dead_code,
    reason = "cargo 1.95 sets cfg(test) for a bench without a harness too, and the compiler drops its #[test]s"
)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use clap::Parser as _;

use super::Cli;
use super::measure::{Cost, Costs, Pairs, Spread, Times};
use super::report::{Bound, Point, Report, Row, Verdict, figure};
use super::wire::{LONGEST_PIPELINE, Load};
use super::{lab, plots, proxy};

#[test]
fn a_suite_measures_prints_a_table_writes_json_and_leaves_nothing_behind() {
    let home = tempfile::tempdir().expect("a directory");
    let json = home.path().join("figures.json");
    let cli = Cli::try_parse_from(["bench", "wake", "--json", json.to_str().expect("a text"), "--bench"]);
    let (table, failed) = cli.expect("it has such a suite").run().expect("it measures");
    assert_eq!(failed, 0);
    assert!(table.starts_with("| suite") && table.contains("LPUSH to a blocked worker, p50"), "{table}");
    let figures: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("the file is there")).expect("it is JSON");
    let row = &figures["rows"][0];
    let (mine, direct) = (row["value"].as_f64().expect("a figure"), row["beside"][1].as_f64().expect("another"));
    assert!(direct > 0.0 && mine > direct, "a job cannot be quicker through dripd than past it: {row}");
    assert!(row["ratio"][1].as_f64().expect("a ratio") > 1.0 && row["verdict"].is_string(), "{row}");
    let last = figures["rows"].as_array().and_then(|rows| rows.last()).expect("there are several");
    assert!(last["cost"]["redis_us"].as_f64().expect("its processor time") > 0.0, "{last}");
    let names = std::fs::read_dir(std::env::temp_dir()).expect("it is there").filter_map(Result::ok);
    let left: Vec<_> =
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with(&lab::home_prefix())).collect();
    assert!(left.is_empty(), "servers and their directories end with the bench: {left:?}");
}

#[test]
fn what_cannot_be_measured_is_a_row_that_says_why_in_the_table_and_in_the_json() {
    let mut report = Report::new();
    report.add(Row::new("http", "measured", 2.0, "ms"));
    report.skip("http", "pushes, by wrk".to_owned(), "needs wrk: apt-get install wrk");
    let table = report.table();
    let row = table.lines().find(|line| line.contains("pushes, by wrk")).expect("a row");
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    assert_eq!(cells, ["http", "pushes, by wrk", "SKIPPED: needs wrk: apt-get install wrk", "", "", "", "", ""]);
    let json: serde_json::Value = serde_json::from_str(&report.json().expect("it is text")).expect("JSON");
    let skipped =
        serde_json::json!([{ "suite": "http", "what": "pushes, by wrk", "why": "needs wrk: apt-get install wrk" }]);
    assert_eq!((&json["skipped"], json["rows"].as_array().map(Vec::len)), (&skipped, Some(1)));
}

#[test]
fn an_unknown_suite_is_a_usage_error() {
    let error = Cli::try_parse_from(["bench", "no-such-suite"]).expect_err("there is none");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn quartiles_are_those_of_the_textbook_and_noise_is_a_spread_over_15_percent() {
    let spread = Spread::of(&[5.0, 1.0, 3.0, 2.0, 4.0]);
    assert_eq!(spread, Spread { low: 2.0, median: 3.0, high: 4.0 });
    assert!(spread.is_noisy());
    assert!(!Spread::of(&[1.0, 1.0, 1.1, 1.1, 1.1]).is_noisy());
    assert_eq!(Spread::of(&[7.0]), Spread { low: 7.0, median: 7.0, high: 7.0 });
}

#[test]
fn pairs_are_taken_in_turns_and_the_first_one_does_not_count() {
    let order = std::cell::RefCell::new(String::new());
    let step = |name| {
        order.borrow_mut().push(name);
        Ok(if name == 'a' { 3.0 } else { 2.0 })
    };
    let pairs = Pairs::measure(|| step('a'), || step('b')).expect("nothing fails");
    assert_eq!(*order.borrow(), "abbaabbaabba");
    assert!((pairs.ratio.median - 1.5).abs() < 1e-9, "{pairs:?}");
}

#[test]
fn a_job_costs_what_was_spent_since_before_by_the_number_of_jobs() {
    let cost = |redis_us, daemon_us| Cost { redis_us, daemon_us };
    let spent = (cost(1_500.0, 300.0) - cost(500.0, 100.0)).a_job(100);
    assert_eq!((spent.redis_us, spent.daemon_us), (10.0, 2.0));
    let costs = Costs::default();
    for run in [cost(1.0, 30.0), cost(3.0, 10.0), cost(2.0, 20.0)] {
        costs.add(run);
    }
    assert_eq!((costs.median().redis_us, costs.median().daemon_us), (2.0, 20.0));
}

#[test]
fn percentiles_are_of_all_the_times_together() {
    let (mut a, mut b) = (Times::new(), Times::new());
    (1..=98).for_each(|_| a.add_us(100));
    (1..=2).for_each(|_| b.add_us(900));
    a.join(&b);
    assert!((a.ms(50.0) - 0.1).abs() < 0.001 && (a.ms(99.0) - 0.9).abs() < 0.001, "{a:?}");
    assert_eq!(a.len(), 100);
}

fn verdict(ratio: [f64; 3], bound: Bound) -> Option<Verdict> {
    let [low, median, high] = ratio;
    Row::new("push", "x", 1.0, "").ratio(Spread { low, median, high }).ratio_goal(bound).verdict
}

#[test]
fn a_noisy_row_is_never_not_met_unless_its_quartiles_agree() {
    assert_eq!(verdict([0.88, 0.9, 0.91], Bound::AtLeast(0.9)), Some(Verdict::Met));
    assert_eq!(verdict([0.88, 0.89, 0.91], Bound::AtLeast(0.9)), Some(Verdict::NotMet));
    assert_eq!(verdict([0.7, 0.8, 1.2], Bound::AtLeast(0.9)), Some(Verdict::Noisy));
    assert_eq!(verdict([1.0, 1.5, 2.0], Bound::AtLeast(0.9)), Some(Verdict::Met));
    assert_eq!(verdict([4.0, 5.0, 6.0], Bound::AtMost(3.0)), Some(Verdict::NotMet));
}

#[test]
fn figures_have_three_digits_that_matter() {
    assert_eq!(
        [1_234_567.8, 0.0, 99.94, 5.0, 0.1234, -1_500.0].map(figure),
        ["1,234,568", "0", "99.9", "5.00", "0.123", "-1,500"]
    );
}

#[test]
fn a_load_begins_again_after_its_last_command_and_never_splits_one() {
    let mut load = Load::default();
    for word in ["a", "bb", "ccc"] {
        load.push(&[word]);
    }
    assert_eq!(load.take(2), (b"*1\r\n$1\r\na\r\n*1\r\n$2\r\nbb\r\n".as_slice(), 2));
    assert_eq!(load.take(2), (b"*1\r\n$3\r\nccc\r\n".as_slice(), 1));
    assert_eq!(load.take(1), (b"*1\r\n$1\r\na\r\n".as_slice(), 1));
    let mut few = Load::of([vec!["a"]].into_iter());
    assert_eq!(few.take(LONGEST_PIPELINE).1, LONGEST_PIPELINE, "a pipeline is as long as it was asked to be");
}

#[test]
fn every_plot_with_points_becomes_a_file() {
    let home = tempfile::tempdir().expect("a directory");
    let point = |plot: &'static str, x, y| Point { plot: plot.into(), line: "dripd".to_owned(), x, y };
    let points = [point("drain", 100.0, 5.0), point("drain", 1e6, 6.0), point("lateness", 10.0, 0.0)];
    plots::draw(&points, &[], home.path()).expect("they are drawn");
    let text = |name| std::fs::read_to_string(home.path().join(name)).unwrap_or_default();
    assert!(text("drain.svg").contains("dripd") && text("lateness.svg").contains("<svg"));
    assert!(text("spacing.svg").is_empty() && text("peers.svg").is_empty(), "there was nothing to draw");
}

#[test]
fn the_plots_of_the_pages_are_drawn_from_the_figures_beside_them() {
    let home = tempfile::tempdir().expect("a directory");
    let args = ["bench", "--from", "docs/figures.json", "--from", "docs/peers.json", "--plots"];
    let args = args.into_iter().chain([home.path().to_str().expect("a text")]);
    Cli::try_parse_from(args).expect("it takes them").run().expect("it draws");
    for name in ["lateness.svg", "spacing.svg", "drain.svg", "peers.svg"] {
        let drawn = std::fs::read_to_string(home.path().join(name)).expect("it is drawn");
        let kept = std::fs::read_to_string(format!("docs/{name}")).expect("a page shows it");
        assert!(drawn == kept, "docs/{name} is not what docs/*.json says: draw it again");
        assert!(drawn.contains("prefers-color-scheme: dark") && drawn.contains("mine"), "{name}");
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{name}");
    }
    let error = Cli::try_parse_from(["bench", "--from", "docs/figures.json"]).expect_err("where to?");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn an_answer_takes_the_round_trip_longer_and_many_under_way_do_not_wait_for_each_other() {
    let echo = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let to = echo.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let mut server = echo.accept().expect("a client").0;
        let mut byte = [0];
        while server.read_exact(&mut byte).is_ok() && server.write_all(&byte).is_ok() {}
    });
    let round_trip = Duration::from_millis(20);
    let mut client =
        TcpStream::connect(("127.0.0.1", proxy::delay(to, round_trip).expect("a proxy"))).expect("it listens");
    let mut all_of_them = || {
        let start = Instant::now();
        for byte in 0..10 {
            client.write_all(&[byte]).expect("it takes");
        }
        let mut answer = [0; 10];
        client.read_exact(&mut answer).expect("it answers");
        assert_eq!(answer, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(start.elapsed() >= round_trip, "{:?}", start.elapsed());
        start.elapsed()
    };
    // One after the other they would take ten round trips each time; a busy machine takes as long now and then.
    assert!((0..10).any(|_| all_of_them() < 5 * round_trip), "they waited for each other");
}
