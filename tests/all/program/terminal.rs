//! A real pseudo-terminal with an emulator behind it, for commands that draw. The emulator is larger than what the terminal says
//! of itself, so that whatever is drawn past its edge is seen.

use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use pty_process::Size;
use pty_process::blocking::Pty;
use rustix::termios::{Termios, tcgetattr};

/// So much more the emulator has of columns and rows.
const BEYOND: u16 = 40;

/// Everything that came out, as bytes and as a picture.
struct Output {
    bytes: Vec<u8>,
    emulator: vt100::Parser,
}

/// What a person sees at one moment.
pub struct Picture {
    pub text: String,
    /// The first cell past the edge that is not blank: its row and column.
    pub past_the_edge: Option<(u16, u16)>,
    /// Whether a program has the whole terminal for it.
    pub whole: bool,
}

/// A program on a terminal. It is killed when this is dropped.
pub struct Terminal {
    child: Child,
    pty: Arc<Pty>,
    output: Arc<Mutex<Output>>,
    reader: Option<JoinHandle<()>>,
    before: Termios,
}

impl Terminal {
    /// Run a command on a terminal of so many columns and rows.
    pub fn start(command: Command, columns: u16, rows: u16) -> Self {
        let (pty, pts) = pty_process::blocking::open().expect("a pseudo-terminal");
        pty.resize(Size::new(rows, columns)).expect("a size");
        let before = tcgetattr(&pty).expect("its settings");
        let child = pty_process::blocking::Command::from(command).spawn(pts).expect("it runs");
        let pty = Arc::new(pty);
        let size = |n: u16| NonZeroU16::new(n + BEYOND).expect("more than none");
        let emulator = vt100::Parser::new(size(rows), size(columns), 0);
        let output = Arc::new(Mutex::new(Output { bytes: Vec::new(), emulator }));
        let (from, to) = (Arc::clone(&pty), Arc::clone(&output));
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 8_192];
            // It fails when the last program on the terminal has ended.
            while let Ok(n @ 1..) = (&*from).read(&mut buffer) {
                let mut output = to.lock().expect("nobody panics with it");
                output.bytes.extend(&buffer[..n]);
                output.emulator.process(&buffer[..n]);
            }
        });
        Self { child, pty, output, reader: Some(reader), before }
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        self.pty.resize(Size::new(rows, columns)).expect("a size");
    }

    pub fn type_keys(&self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).expect("it takes keys");
    }

    fn look<T>(&self, look: impl FnOnce(&Output) -> T) -> T {
        look(&self.output.lock().expect("nobody panics with it"))
    }

    /// What a person sees, without blanks at the ends of lines.
    pub fn text(&self) -> String {
        self.look(|output| output.emulator.screen().contents())
    }

    /// Everything that was written, control sequences and all.
    pub fn bytes(&self) -> String {
        self.look(|output| String::from_utf8_lossy(&output.bytes).into_owned())
    }

    /// The same of a terminal of so many columns and rows.
    pub fn picture(&self, columns: u16, rows: u16) -> Picture {
        self.look(|output| {
            let screen = output.emulator.screen();
            let (all_rows, all_columns) = screen.size();
            let cells = (0..all_rows.get()).flat_map(|row| (0..all_columns.get()).map(move |column| (row, column)));
            let past = cells.filter(|(row, column)| *row >= rows || *column >= columns).find(|(row, column)| {
                screen.cell(*row, *column).is_some_and(|cell| !cell.contents().trim().is_empty())
            });
            Picture { text: screen.contents(), past_the_edge: past, whole: screen.alternate_screen() }
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is a child").is_some()
    }

    /// Wait for the end. Replies the exit code; the terminal must be as it was.
    pub fn end(&mut self) -> i32 {
        let code = self.child.wait().expect("it ends").code().unwrap_or(-1);
        self.reader.take().expect("it ends once").join().expect("it read all");
        let after = tcgetattr(&self.pty).expect("its settings");
        let modes = |t: &Termios| (t.input_modes, t.output_modes, t.control_modes, t.local_modes);
        assert_eq!(modes(&after), modes(&self.before), "the terminal is left as it was");
        let (taken, hidden) =
            self.look(|output| (output.emulator.screen().alternate_screen(), output.emulator.screen().hide_cursor()));
        assert!(!taken && !hidden, "its picture is gone and the cursor is back");
        code
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the terminal\n{}", self.text());
        }
    }
}
