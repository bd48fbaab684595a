//! The bench, as a user runs it. Whether its figures are good is for a quiet machine; that it measures is for every one.

use std::process::Command;

fn bench(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_dripd")).arg("bench").args(args).output().expect("dripd runs")
}

#[cfg(not(feature = "bench"))]
#[test]
fn a_build_without_the_bench_says_how_to_get_one() {
    for args in [&[] as &[&str], &["push", "--json", "x"]] {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.starts_with("dripd bench: ") && said.contains("make bench") && said.lines().count() == 1,
            "{said}"
        );
    }
}

#[cfg(feature = "bench")]
#[test]
fn a_suite_measures_prints_a_table_writes_json_and_leaves_nothing_behind() {
    let home = tempfile::tempdir().expect("a directory");
    let json = home.path().join("figures.json");
    let output = Command::new(env!("CARGO_BIN_EXE_dripd"))
        .args(["bench", "wake", "--json", json.to_str().expect("a text")])
        .env("TMPDIR", home.path())
        .output()
        .expect("dripd runs");
    let (table, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(table.starts_with("| suite") && table.contains("LPUSH to a blocked worker, p50"), "{table}");
    let figures: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("the file is there")).expect("it is JSON");
    let row = &figures["rows"][0];
    let (mine, direct) = (row["value"].as_f64().expect("a figure"), row["beside"][1].as_f64().expect("another"));
    assert!(direct > 0.0 && mine > direct, "a job cannot be quicker through dripd than past it: {row}");
    assert!(row["ratio"][1].as_f64().expect("a ratio") > 1.0 && row["verdict"].is_string(), "{row}");
    let left: Vec<_> = std::fs::read_dir(home.path()).expect("it is there").filter_map(Result::ok).collect();
    assert_eq!(left.len(), 1, "servers and their directories end with the bench: {left:?}");
    assert_eq!(bench(&["no-such-suite"]).status.code(), Some(2));
}
