//! A clock of its own for a Redis, which can be stepped: libfaketime stands between the program and the system's clock.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::cast::now_us;
use super::server::Redis;
use super::stage::Stage;
use crate::rig::{eventually, server_program};

/// How far the clock is from the system's, as a file says that the program reads whenever it asks for the time.
pub struct Clock {
    file: PathBuf,
    ahead_s: i64,
}

impl Clock {
    /// One that is not stepped yet, and what runs a program under it; or why that cannot be.
    pub fn new(dir: &Path) -> Result<(Self, Vec<String>), String> {
        let library = find().ok_or("needs libfaketime: apt-get install faketime")?;
        let clock = Self { file: dir.join("clock"), ahead_s: 0 };
        clock.write();
        // jemalloc asks for the time while it begins, libfaketime for memory: so the C library's own malloc goes before it.
        let preload = format!("LD_PRELOAD={} libc.so.6", library.display());
        let tried = Command::new("env").arg(&preload).arg(server_program()).arg("--version").output();
        if !tried.is_ok_and(|tried| tried.status.success() && tried.stderr.is_empty()) {
            return Err(format!("{} does not start under libfaketime", server_program().display()));
        }
        let words = [
            "env".to_owned(),
            preload,
            format!("FAKETIME_TIMESTAMP_FILE={}", clock.file.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            // A step of the clock on the wall leaves the monotonic one alone.
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        ];
        Ok((clock, words.to_vec()))
    }

    fn write(&self) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{:+}\n", self.ahead_s)).expect("written");
        std::fs::rename(&new, &self.file).expect("renamed"); // it is never found half written
    }

    fn step(&mut self, by_s: i64) {
        self.ahead_s += by_s;
        self.write();
    }
}

fn find() -> Option<PathBuf> {
    let name = "faketime/libfaketimeMT.so.1";
    let libraries = std::fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path().join(name)));
    libraries.chain(["/usr/lib", "/usr/lib64"].map(|dir| Path::new(dir).join(name))).find(|path| path.is_file())
}

fn server_us(redis: &Redis) -> i128 {
    let (s, us): (i128, i128) =
        redis::cmd("TIME").query(&mut redis.connect().expect("it answers")).expect("it knows the time");
    s * 1_000_000 + us
}

/// Step the server's clock, and wait until it says so itself.
fn step(stage: &mut Stage, by_s: i64) {
    let before = now_us();
    let clock = stage.clock.as_mut().expect("a stage with a clock of its own");
    clock.step(by_s);
    let ahead_us = i128::from(clock.ahead_s) * 1_000_000;
    eventually("the clock is stepped", || {
        (server_us(&stage.redis) - i128::from(now_us()) - ahead_us).abs() < 10_000_000
    });
    stage.steps_us.push((before, now_us()));
}

pub fn an_hour_ahead(stage: &mut Stage) {
    step(stage, 3_600);
}

pub fn an_hour_back(stage: &mut Stage) {
    step(stage, -3_600);
}

pub fn a_day_back(stage: &mut Stage) {
    step(stage, -86_400);
}
