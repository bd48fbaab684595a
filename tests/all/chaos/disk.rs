//! A disk of its own for the data of a Redis, small enough to be filled: a tmpfs that only Redis sees.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::stage::Stage;
use crate::rig::eventually;

/// The mount is seen by its holder and by whoever is run through it. It is gone when they are, however the test ends.
pub struct Disk {
    holder: Child,
    at: PathBuf,
}

impl Disk {
    /// Mount it over a directory, or say why that cannot be.
    pub fn mount(at: &Path) -> Result<Self, String> {
        let mut unshare = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            unshare.arg("--map-root-user");
        }
        unshare.args(["--mount", "sh", "-c", r#"mount -t tmpfs -o size=32m tmpfs "$1" && echo mounted && read -r _"#]);
        unshare.arg("sh").arg(at).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = unshare.spawn().map_err(|why| format!("needs unshare: apt-get install util-linux ({why})"))?;
        let mut said = String::new();
        let _ = BufReader::new(holder.stdout.as_mut().expect("a pipe")).read_line(&mut said);
        if said != "mounted\n" {
            let _ = holder.kill();
            let mut why = String::new();
            let _ = holder.stderr.take().expect("a pipe").read_to_string(&mut why);
            let _ = holder.wait();
            return Err(format!(
                "no tmpfs can be mounted: {}: run it as root, outside of a container",
                why.trim().replace('\n', "; ")
            ));
        }
        Ok(Self { holder, at: at.to_owned() })
    }

    /// What runs a program so that it sees the disk.
    pub fn through(&self) -> Vec<String> {
        let target = format!("--target={}", self.holder.id());
        let user = ["--user", "--preserve-credentials"];
        let user = if rustix::process::geteuid().is_root() { &[][..] } else { &user[..] };
        ["nsenter", &target, "--mount"].iter().chain(user).map(|word| (*word).to_owned()).collect()
    }

    /// A file on it, as it is found from outside.
    fn file(&self, name: &str) -> PathBuf {
        let at = self.at.strip_prefix("/").expect("from the root");
        Path::new(&format!("/proc/{}/root", self.holder.id())).join(at).join(name)
    }

    /// Fill it to the last byte.
    fn fill(&self) {
        let mut ballast = std::fs::File::create(self.file("ballast")).expect("a file");
        let block = vec![b'x'; 64 * 1024];
        let why = std::iter::repeat_with(|| ballast.write_all(&block)).find_map(Result::err).expect("it has an end");
        assert_eq!(why.kind(), std::io::ErrorKind::StorageFull);
    }

    fn free(&self) {
        std::fs::remove_file(self.file("ballast")).expect("removed");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The disk is full for a second. With `everysec` Redis refuses writes meanwhile; with `always` it ends itself, and is started again.
pub fn is_full(stage: &mut Stage) {
    let disk = stage.disk.as_ref().expect("a stage with a disk of its own");
    disk.fill();
    eventually("redis meets the end of its disk", || {
        stage.redis.info("persistence").map_or(true, |info| info.contains("aof_last_write_status:err"))
    });
    assert_eq!(stage.redis.info("server").is_err(), stage.redis.fsync == "always", "only with `always` it ends itself");
    std::thread::sleep(std::time::Duration::from_secs(1));
    disk.free();
    if stage.redis.fsync == "always" {
        stage.redis.kill();
        stage.redis.start();
    }
    eventually("redis takes writes", || stage.redis.connect().is_ok());
}
