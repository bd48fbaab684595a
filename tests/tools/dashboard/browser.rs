//! A real browser, told in the words of somebody who uses it: Debian's Chromium, driven by `tests/browser/driver.mjs`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::needs;

/// How wide a screen is, and which theme its owner likes.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub theme: &'static str,
    pub width: u32,
}

pub const DESK: Look = Look { theme: "light", width: 1280 };
pub const PHONE: Look = Look { theme: "light", width: 390 };
pub const DARK_DESK: Look = Look { theme: "dark", width: 1280 };
pub const DARK_PHONE: Look = Look { theme: "dark", width: 390 };

/// An open page. The browser ends with it.
pub struct Browser {
    child: Child,
    /// The driver ends when this is gone, with the browser and all that the two have stored.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// Chromium, Node, and the folder with what drives one from the other.
pub fn tools() -> (PathBuf, PathBuf, PathBuf) {
    const WAY: &str = "sh tests/browser/setup.sh";
    // One test installs it, and the others wait for what became of that.
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let chromium = needs::one_of(&["chromium", "chromium-browser", "google-chrome"], WAY);
    let node = needs::one_of(&["node", "nodejs"], WAY);
    let npm = needs::one_of(&["npm"], WAY);
    let (from, to) = (Path::new("tests/browser"), Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser"));
    let installed = INSTALLED.get_or_init(|| {
        let lock = std::fs::read(from.join("package-lock.json")).expect("the lock file");
        let stamp = to.join("installed");
        if std::fs::read(&stamp).is_ok_and(|installed| installed == lock) {
            return true;
        }
        std::fs::create_dir_all(&to).expect("a folder");
        for file in ["package.json", "package-lock.json"] {
            std::fs::copy(from.join(file), to.join(file)).expect("copied");
        }
        let install = ["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"];
        let done = needs::runs(Command::new(npm).args(install).current_dir(&to));
        if done {
            std::fs::write(stamp, lock).expect("written");
        }
        done
    });
    if !installed {
        needs::missing("the packages that drive Chromium", &needs::registry("npm ci in target/tmp/browser"));
    }
    (chromium, node, to)
}

impl Browser {
    /// Open a page. Where there is no browser, the test is ignored.
    pub fn open(url: &str, look: Look) -> Self {
        let (chromium, node, modules) = tools();
        let mut command = Command::new(node);
        command.arg("tests/browser/driver.mjs").arg(chromium).arg(modules);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("node runs");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut browser = Self { child, stdin, stdout };
        let Look { theme, width } = look;
        browser.have("open", &json!({ "url": url, "theme": theme, "width": width }));
        browser
    }

    fn attempt(&mut self, what: &str, more: &Value) -> Result<Value, String> {
        let mut asked = more.clone();
        asked["what"] = json!(what);
        writeln!(self.stdin.as_mut().expect("it is open"), "{asked}").expect("the driver listens");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the driver answers");
        let mut said: Value =
            serde_json::from_str(&line).unwrap_or_else(|why| panic!("{what} {more}: {line:?}: {why}"));
        match said.get("error").and_then(Value::as_str) {
            Some(why) => Err(why.to_owned()),
            None => Ok(said["ok"].take()),
        }
    }

    #[track_caller]
    fn have(&mut self, what: &str, more: &Value) -> Value {
        self.attempt(what, more).unwrap_or_else(|why| {
            let page = self.attempt("run", &json!({ "code": "document.body.innerText" }));
            let trouble = self.attempt("trouble", &json!({}));
            panic!("{what} {more}: {why}\n--- on the page:\n{page:?}\n--- trouble: {trouble:?}")
        })
    }

    #[track_caller]
    pub fn goto(&mut self, url: &str) {
        self.have("goto", &json!({ "url": url }));
    }

    #[track_caller]
    pub fn reload(&mut self) {
        self.have("reload", &json!({}));
    }

    /// Open another tab of the same browser: what follows is about that one.
    #[track_caller]
    pub fn tab(&mut self, url: &str) {
        self.have("tab", &json!({ "url": url }));
    }

    /// Go on in a tab, the first one being 0.
    #[track_caller]
    pub fn turn_to(&mut self, tab: usize) {
        self.have("turn", &json!({ "to": tab }));
    }

    /// Close this tab; those after it move up.
    #[track_caller]
    pub fn close(&mut self) {
        self.have("close", &json!({}));
    }

    /// Put this tab out of view, or back.
    #[track_caller]
    pub fn hide(&mut self, hidden: bool) {
        self.have("hide", &json!({ "hidden": hidden }));
    }

    /// How many streams of events all tabs have.
    #[track_caller]
    pub fn streams(&mut self) -> u64 {
        self.have("streams", &json!({})).as_u64().expect("a number")
    }

    /// Press a button, or follow a link.
    #[track_caller]
    pub fn click(&mut self, role: &str, name: &str) {
        self.have("click", &json!({ "role": role, "name": name }));
    }

    #[track_caller]
    pub fn is_disabled(&mut self, role: &str, name: &str) -> bool {
        self.have("disabled", &json!({ "role": role, "name": name })) == json!(true)
    }

    /// Write into the field with this label.
    #[track_caller]
    pub fn fill(&mut self, label: &str, text: &str) {
        self.have("fill", &json!({ "label": label, "text": text }));
    }

    /// Choose from the list with this label.
    #[track_caller]
    pub fn select(&mut self, label: &str, text: &str) {
        self.have("select", &json!({ "label": label, "text": text }));
    }

    #[track_caller]
    pub fn press(&mut self, key: &str) {
        self.have("press", &json!({ "key": key }));
    }

    #[track_caller]
    pub fn type_in(&mut self, text: &str) {
        self.have("type", &json!({ "text": text }));
    }

    /// Wait until a text can be seen.
    #[track_caller]
    pub fn sees(&mut self, text: &str) {
        self.have("sees", &json!({ "text": text }));
    }

    /// Wait until a text can be seen no more.
    #[track_caller]
    pub fn gone(&mut self, text: &str) {
        self.have("gone", &json!({ "text": text }));
    }

    /// Wait until an expression is true on the page.
    #[track_caller]
    pub fn until(&mut self, code: &str) {
        self.have("until", &json!({ "code": code }));
    }

    /// What an expression is on the page.
    #[track_caller]
    pub fn run(&mut self, code: &str) -> Value {
        self.have("run", &json!({ "code": code }))
    }

    /// What axe finds that keeps people out.
    #[track_caller]
    pub fn barriers(&mut self) -> Vec<String> {
        serde_json::from_value(self.have("axe", &json!({}))).expect("texts")
    }

    /// Errors and warnings of the page, and boxes that a script opened.
    #[track_caller]
    pub fn trouble(&mut self) -> Vec<String> {
        serde_json::from_value(self.have("trouble", &json!({}))).expect("texts")
    }

    /// The hosts that the page asked.
    #[track_caller]
    pub fn hosts(&mut self) -> Vec<String> {
        serde_json::from_value(self.have("hosts", &json!({}))).expect("texts")
    }

    /// Keep a picture, where `DRIPD_PICTURES` names a folder: for whoever wants to look.
    #[track_caller]
    pub fn picture(&mut self, name: &str) {
        if let Some(dir) = std::env::var_os("DRIPD_PICTURES") {
            let path = Path::new(&dir).join(format!("{name}.png"));
            self.have("picture", &json!({ "path": path }));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}
