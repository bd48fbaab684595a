//! The bench, included as a module: as a bench it has no test harness, here its tests run (`benches/bench/tests.rs`).

#[expect(dead_code, reason = "its main is for cargo bench")]
#[path = "../../benches/bench/main.rs"]
mod instrument;
