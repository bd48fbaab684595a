//! `dripd top` on a real terminal, over a real Redis and a real daemon: the picture at three sizes, what the keys do and their effect
//! in Redis, no bucket and many, a Redis that is away for a while, and the terminal as it was afterwards.

use std::process::Stdio;
use std::time::Instant;

use unicode_width::UnicodeWidthStr as _;

use super::terminal::Terminal;
use super::{Shell, Stopped, signal};
use crate::rig::{Daemon, Server, dripd, eventually};

/// A large one, and one that reads from right to left, and a paused one whose figures stand still.
/// They leave one in 59 minutes, so that after how long a bucket is empty does not depend on the millisecond of a look. No rate is so high
/// that the pace is known before the test is over.
const THREE: &str = "[defaults]\nrate = '1/59m'\ncapacity = 50\n[[bucket]]\nmatch = 'few'\nrate = '30/h'\n";
const WIDE: &str = "wide 短信 \u{202e}rtl";

/// A server, a daemon, and three buckets: by the time until they are empty wide, many, few; by depth wide, few, many.
fn three() -> (Server, Shell, Daemon) {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, THREE);
    let daemon = Daemon::start(shell.home());
    assert_eq!(shell.run(&["pause", "few"]).0, 0);
    shell.case.lpush("many", &vec!["x"; 41]);
    shell.case.lpush("few", &vec!["x"; 45]);
    shell.case.lpush(WIDE, &vec!["x"; 60]);
    // Whoever looks from here on sees nothing leave.
    eventually("the first of two has left", || shell.case.stream("ready").len() == 2);
    (server, shell, daemon)
}

fn top(shell: &Shell, args: &[&str], columns: u16, rows: u16) -> Terminal {
    let args: Vec<&str> = ["top"].into_iter().chain(args.iter().copied()).collect();
    let mut command = shell.command(&args);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env("SUDO_USER", "ann");
    Terminal::start(command, columns, rows)
}

/// The picture with what no test can know replaced: the seconds of an hour, and how old the ranking is.
fn masked(text: &str) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if let Some((title, age)) = lines.first().and_then(|line| line.rsplit_once("ranked ")) {
        let is_age = age.strip_suffix(" ago").is_some_and(|age| age.ends_with('s'));
        lines[0] = format!("{} ranked {}", title.trim_end(), if is_age { "T ago" } else { age });
    }
    let lines = lines.iter().map(|line| {
        let words = line
            .split(' ')
            .map(|word| if ["59m", "58m", "57m"].iter().any(|m| word.starts_with(m)) { "59m00s" } else { word });
        words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Wait for a picture, and see that nothing of it is past the edge.
#[track_caller]
fn shows(terminal: &Terminal, columns: u16, rows: u16, parts: &[&str]) {
    eventually(&format!("the picture has {parts:?}"), || parts.iter().all(|part| terminal.text().contains(part)));
    assert_eq!(terminal.picture(columns, rows).past_the_edge, None, "{}", terminal.text());
}

#[test]
fn on_80_columns_and_24_rows_each_bucket_has_a_row_with_everything_that_matters() {
    let (_server, shell, _daemon) = three();
    let terminal = top(&shell, &[], 80, 24);
    shows(&terminal, 80, 24, &["1 of 3", "out 0/s", "rejected 0/s", " 49/50 ", "the next job leaves in "]);
    let text = terminal.text();
    let lines: Vec<String> = masked(&text).lines().map(str::to_owned).collect();
    let expected = [
        "dripd top by time until empty 1 of 3, ranked T ago",
        "out 0/s  1 daemon  3 waiting  rejected 0/s  0 dead  1 paused",
        "BUCKET               FULL       DEPTH EMPTY IN     NOW      SET WHY",
        "wide 短信 \\u{202e}r… █████▉     49/50     2d0h       …    1/59m rate, in 59m00s",
        "many                 ████▊      40/50    1d15h       …    1/59m rate, in 59m00s",
        "few                  █████▍     45/50    1h28m       …     30/h paused",
    ];
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>().join(" "), expected[0], "{text}");
    assert_eq!(lines[1..6], expected[1..], "{text}");
    assert!(
        lines[21].starts_with("the next job leaves in ")
            && lines[21].ends_with(": wide 短信 \\u{202e}rtl is at its rate"),
        "{text}"
    );
    assert_eq!(lines[23], "? help  q quit  Enter explain  p pause  / filter  Space freeze  e d r l order", "{text}");
    // Columns are where their heads are, whatever the names hold.
    let ends_at = |line: &str, what: &str| line.split_once(what).map(|(before, _)| before.width() + what.width());
    let depth_ends = ends_at(text.lines().nth(2).expect("heads"), "DEPTH");
    for (n, depth) in [(3, "49/50"), (4, "40/50"), (5, "45/50")] {
        assert_eq!(ends_at(text.lines().nth(n).expect("a row"), depth), depth_ends, "{text}");
    }
}

#[test]
fn on_120_columns_and_40_rows_there_are_more_columns_and_on_40_columns_name_depth_and_why() {
    let (_server, shell, _daemon) = three();
    let terminal = top(&shell, &["--by", "depth"], 120, 40);
    shows(&terminal, 120, 40, &["by depth", "1 of 3, ranked ", "out 0/s", "REJECTED    LATE       NOW       SET WHY"]);
    let text = terminal.text();
    let rows: Vec<String> =
        masked(&text).lines().skip(3).take(3).map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "wide 短信 \\u{202e}rtl ███████████▊ 49/50 2d0h 10 - … 1/59m rate, in 59m00s",
        "few ██████████▊ 45/50 1h28m - - … 30/h paused",
        "many █████████▋ 40/50 1d15h - - … 1/59m rate, in 59m00s",
    ];
    assert_eq!(rows, expected, "{text}");
    terminal.resize(40, 12);
    shows(&terminal, 40, 12, &["BUCKET              DEPTH WHY", "\nfew                    45 paused", "ranked "]);
    terminal.resize(20, 5);
    let fits = || terminal.picture(20, 5).past_the_edge.is_none() && terminal.text().starts_with("dripd top");
    eventually("it is drawn anew in a very small one", fits);
}

#[test]
fn keys_sort_filter_freeze_and_explain() {
    let (_server, mut shell, _daemon) = three();
    let mut terminal = top(&shell, &[], 80, 24);
    shows(&terminal, 80, 24, &["1 of 3", "\nmany "]);
    let order = |terminal: &Terminal| {
        let rows: Vec<String> =
            terminal.text().lines().skip(3).take(3).map(|row| row.chars().take(4).collect()).collect();
        rows.join(" ")
    };
    assert_eq!(order(&terminal), "wide many few ");
    terminal.type_keys("d");
    eventually("by depth", || terminal.text().contains("by depth") && order(&terminal) == "wide few  many");
    terminal.type_keys("j");
    shows(&terminal, 80, 24, &["2 of 3", "nothing leaves until `dripd resume few`: few is paused by "]);
    terminal.type_keys("e");
    eventually("by the time until it is empty", || order(&terminal) == "wide many few ");
    terminal.type_keys("r");
    shows(&terminal, 80, 24, &["by rejected", "1 of 1", " 10 "]);
    terminal.type_keys("l");
    shows(&terminal, 80, 24, &["by lateness", "No bucket is late."]);
    terminal.type_keys("s");
    shows(&terminal, 80, 24, &["by time until empty", "1 of 3"]);
    terminal.type_keys("/ew\u{7f}");
    shows(&terminal, 80, 24, &["filter (a glob, or a part of the name): e▏"]);
    terminal.type_keys("\r");
    shows(&terminal, 80, 24, &["match *e*", " of 2"]);
    terminal.type_keys("/m*\r");
    shows(&terminal, 80, 24, &["match m*", "1 of 1", "\nmany "]);
    terminal.type_keys("/zzz\r");
    shows(&terminal, 80, 24, &["None of those that are ranked matches *zzz*."]);
    terminal.type_keys("/\r");
    shows(&terminal, 80, 24, &[" of 3"]);
    terminal.type_keys("\u{1b}[F\r");
    shows(&terminal, 80, 24, &["few       30/h", "overflow  reject", "few is paused by ", "Esc back"]);
    terminal.type_keys("\r");
    shows(&terminal, 80, 24, &["3 of 3", "BUCKET "]);
    terminal.type_keys("?");
    shows(&terminal, 80, 24, &["q, Esc, Ctrl-C", "pause the selected one, or resume it; asks first", "as old as the"]);
    terminal.type_keys("?");
    terminal.type_keys(" ");
    shows(&terminal, 80, 24, &["FROZEN", "\nmany ", "40/50"]);
    shell.case.lpush("many", &["x"; 5]);
    let row = |terminal: &Terminal| terminal.text().lines().find(|line| line.starts_with("many ")).map(str::to_owned);
    let frozen = row(&terminal);
    let frozen_for = || terminal.text().split_once("FROZEN ")?.1.split_once('.')?.0.parse::<u64>().ok();
    eventually("it has stood still for three seconds", || frozen_for() >= Some(3));
    assert_eq!(row(&terminal), frozen, "it stays as it is");
    terminal.type_keys(" ");
    shows(&terminal, 80, 24, &["45/50"]);
    terminal.type_keys("q");
    assert_eq!(terminal.end(), 0);
    assert_eq!(terminal.text().trim(), "", "nothing is left on it");
}

#[test]
fn p_pauses_the_selected_bucket_as_the_command_does_says_who_did_it_and_resumes_it() {
    let (_server, mut shell, _daemon) = three();
    let terminal = top(&shell, &["--match", "many"], 80, 24);
    shows(&terminal, 80, 24, &["match many", "1 of 1"]);
    let is_paused = |shell: &mut Shell| {
        let key = shell.case.key("paused");
        shell.case.cmd::<Option<f64>>(&["ZSCORE", &key, "many"]).is_some()
    };
    terminal.type_keys("p");
    shows(&terminal, 80, 24, &["pause many as ann@", "? [y/N]"]);
    terminal.type_keys("n");
    eventually("it asks no more", || !terminal.text().contains("[y/N]"));
    assert!(!is_paused(&mut shell));
    terminal.type_keys("py");
    shows(
        &terminal,
        80,
        24,
        &["many: paused; 1 job is out already and not called back: 1 ready", "by ann@", "9m paused"],
    );
    assert!(is_paused(&mut shell));
    let (_, settings, _) = shell.run(&["settings"]);
    assert!(settings.contains("many") && settings.contains("ann@"), "{settings}");
    terminal.type_keys("p");
    shows(&terminal, 80, 24, &["resume many as ann@"]);
    terminal.type_keys("y");
    shows(&terminal, 80, 24, &["many: paused no more", "rate, in 5"]);
    assert!(!is_paused(&mut shell));
    // What a glob pauses is not let go by the name: it says what does.
    assert_eq!(shell.run(&["pause", "man*"]).0, 0);
    shows(&terminal, 80, 24, &["paused by man*"]);
    eventually("the change has reached it", || is_paused(&mut shell));
    terminal.type_keys("py");
    shows(&terminal, 80, 24, &["nothing is paused under \"many\"; \"man*\" has it paused", "dripd resume 'man*'"]);
    assert!(is_paused(&mut shell));
}

#[test]
fn a_bucket_whose_name_looks_like_a_glob_is_paused_by_itself() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, "[defaults]\nrate = '1/h'\n");
    let _daemon = Daemon::start(shell.home());
    let (odd, other) = (r"o*[d]\d?", r"oxd\dy");
    for bucket in [odd, other] {
        shell.case.lpush(bucket, &["1", "2", "3"]);
    }
    let terminal = top(&shell, &["--match", r"o\**"], 80, 24);
    shows(&terminal, 80, 24, &["1 of 1", odd]);
    terminal.type_keys("py");
    shows(&terminal, 80, 24, &[": paused; ", "h paused"]);
    let key = shell.case.key("paused");
    eventually("it is", || shell.case.cmd::<Vec<String>>(&["ZRANGE", &key, "0", "-1"]) == [odd]);
    terminal.type_keys("py");
    shows(&terminal, 80, 24, &[": paused no more"]);
    eventually("it is not", || shell.case.cmd::<u64>(&["ZCARD", &key]) == 0);
}

#[test]
fn budgets_have_a_view_of_their_own_and_their_rate_is_measured() {
    let server = Server::start(&[]);
    let toml = "[[bucket]]\nmatch = 'acc:*'\nrate = '40/s'\nwithin = 'provider'\n[[budget]]\nmatch = 'provider'\nrate = '20/s'\n\
                [[budget]]\nmatch = 'unused'\nconcurrency = 5\n";
    let mut shell = Shell::on(&server, toml);
    let _daemon = Daemon::start(shell.home());
    for account in ["acc:a", "acc:b"] {
        shell.case.lpush(account, &vec!["x"; 900]);
    }
    let terminal = top(&shell, &["--budgets"], 80, 24);
    shows(
        &terminal,
        80,
        24,
        &["dripd top  budgets", "BUDGET ", "2 waiting", "\nprovider ", "\nunused ", " 0/5 nothing waits", " 20/s "],
    );
    let row = |name: &str| terminal.text().lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    // It is busy all the time; a machine that is busy too may let a little less out.
    eventually("its rate is measured", || {
        let row = row("provider ");
        let mut rates = row.split_whitespace().filter_map(|word| word.strip_suffix("/s")?.parse::<f64>().ok());
        let (now, set) = (rates.next(), rates.next()); // while it is not known yet there is only what is set
        set == Some(20.0) && now.is_some_and(|now| (10.0..21.0).contains(&now))
    });
    assert!(row("provider ").contains('█'), "{}", terminal.text());
    terminal.type_keys("\r");
    shows(&terminal, 80, 24, &["provider  20/s", "wait for a share of it"]);
    terminal.type_keys("\u{1b}");
    eventually("it is closed", || terminal.text().contains("BUDGET "));
    terminal.type_keys("py");
    shows(&terminal, 80, 24, &["budget provider: paused; ", "20/s         - paused"]);
    terminal.type_keys("b");
    shows(&terminal, 80, 24, &["by time until empty", "\nacc:a ", "provider paused"]);
}

#[test]
fn without_any_bucket_it_says_so_and_without_a_daemon_too() {
    let server = Server::start(&[]);
    let shell = Shell::on(&server, THREE);
    let terminal = top(&shell, &[], 80, 24);
    shows(&terminal, 80, 24, &["NO DAEMON RUNS", "No ranking: no daemon runs. Start one with `dripd run`."]);
    let _daemon = Daemon::start(shell.home());
    shows(&terminal, 80, 24, &["1 daemon", "No bucket has work.", "0 waiting"]);
    terminal.type_keys("p\rjk\u{1b}[F");
    shows(&terminal, 80, 24, &["No bucket has work."]);
}

#[test]
fn of_5000_buckets_the_first_thousand_can_be_reached_and_a_second_costs_a_few_calls() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, "[defaults]\nrate = '1/h'\n");
    let mut daemon = Daemon::start(shell.home());
    let mut pipe = redis::pipe();
    for n in 0..5_000 {
        pipe.cmd("LPUSH").arg(shell.case.queue(&format!("b{n:04}"))).arg(&["1", "2", "3"]).ignore();
    }
    pipe.exec(&mut shell.case.redis).expect("pushed");
    let terminal = top(&shell, &["--by", "depth"], 120, 40);
    shows(&terminal, 120, 40, &["5000 waiting", "1 of 1000"]);
    terminal.type_keys("\u{1b}[F");
    shows(&terminal, 120, 40, &["1000 of 1000"]);
    terminal.type_keys("\u{1b}[5~");
    shows(&terminal, 120, 40, &[" of 1000", "rate, in 5"]);
    // Nobody else calls functions from here on.
    assert_eq!(daemon.stop().0, Some(0));
    shows(&terminal, 120, 40, &["NO DAEMON RUNS", "no daemon"]);
    let calls = |shell: &mut Shell| {
        let info: String = shell.case.cmd(&["INFO", "commandstats"]);
        let of = |name: &str| {
            let line =
                info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls="))).unwrap_or("0,");
            line.split(',').next().and_then(|n| n.parse::<u64>().ok()).expect("a number")
        };
        of("fcall") + of("fcall_ro")
    };
    let (before, since) = (calls(&mut shell), Instant::now());
    eventually("some refreshes", || calls(&mut shell) >= before + 12);
    let seconds = since.elapsed().as_secs_f64();
    let made = calls(&mut shell) - before;
    assert!(made as f64 <= 5.0 * (seconds + 2.0), "{made} calls in {seconds} s");
}

#[test]
fn a_redis_that_does_not_answer_is_told_and_when_it_answers_again_all_goes_on() {
    let (server, mut shell, _daemon) = three();
    let terminal = top(&shell, &[], 80, 24);
    shows(&terminal, 80, 24, &["1 of 3", "out 0/s"]);
    let pid = server.pid();
    let goes_on = Stopped::stop(pid);
    eventually("it is told", || terminal.text().contains("REDIS DOES NOT ANSWER for "));
    assert!(terminal.text().contains("\nmany "), "what was known before stays: {}", terminal.text());
    terminal.type_keys("py");
    eventually("nothing is done later", || terminal.text().contains("Redis does not answer; nothing was done"));
    drop(goes_on);
    eventually("it goes on", || terminal.text().contains("1 daemon") && !terminal.text().contains("REDIS DOES NOT"));
    shell.case.lpush("many", &["x"]);
    shows(&terminal, 80, 24, &["41/50"]);
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let (_server, shell, _daemon) = three();
    for (name, code) in [("TERM", 130), ("INT", 130), ("HUP", 130)] {
        let mut terminal = top(&shell, &[], 80, 24);
        shows(&terminal, 80, 24, &["1 of 3"]);
        signal(terminal.pid(), name);
        assert_eq!(terminal.end(), code, "{name}");
        assert_eq!(terminal.text().trim(), "", "{name}");
    }
    for keys in ["\u{3}", "\u{1b}"] {
        let mut terminal = top(&shell, &[], 80, 24);
        shows(&terminal, 80, 24, &["1 of 3"]);
        terminal.type_keys(keys);
        assert_eq!(terminal.end(), 0, "{keys:?}");
    }
}

#[test]
fn without_colours_there_are_none_and_the_selected_row_is_still_seen() {
    let (_server, shell, _daemon) = three();
    let mut command = shell.command(&["top"]);
    command.env("TERM", "xterm").env("NO_COLOR", "1");
    let terminal = Terminal::start(command, 80, 24);
    shows(&terminal, 80, 24, &["1 of 3", "paused"]);
    let bytes = terminal.bytes();
    let is_color = |code: &str| {
        code.split(';').any(|n| n.parse().is_ok_and(|n: u32| (30..=38).contains(&n) || (40..=48).contains(&n)))
    };
    let codes: Vec<&str> =
        bytes.split("\u{1b}[").filter_map(|rest| rest.split_once('m').map(|(code, _)| code)).collect();
    let colors: Vec<&&str> =
        codes.iter().filter(|code| code.chars().all(|c| c.is_ascii_digit() || c == ';') && is_color(code)).collect();
    assert!(colors.is_empty(), "{colors:?}");
    assert!(bytes.contains("\u{1b}[7m"), "the selected row is reversed");
}

#[test]
fn where_nothing_can_be_drawn_it_says_what_else_there_is() {
    let server = Server::start(&[]);
    let shell = Shell::on(&server, THREE);
    let (code, out, err) = shell.run(&["top"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(
        err,
        "dripd top: it draws on a terminal, and there is none here; `dripd status --json` tells the same to scripts\n"
    );
    let mut command = shell.command(&["top"]);
    command.env("TERM", "dumb");
    let mut terminal = Terminal::start(command, 80, 24);
    assert_eq!(terminal.end(), 2);
    let (code, _, err) = shell.run(&["top", "--by", "size"]);
    assert!(code == 2 && err.contains("empty, depth, rejected, late"), "{err}");
    let mut command = dripd();
    command
        .args(["top"])
        .current_dir(shell.home())
        .env("TERM", "xterm")
        .env("DRIPD_REDIS_URL", "redis://127.0.0.1:1")
        .stdin(Stdio::null());
    let mut terminal = Terminal::start(command, 80, 24);
    assert_eq!(terminal.end(), 69, "{}", terminal.text());
}
