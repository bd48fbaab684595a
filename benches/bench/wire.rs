//! A connection as producers and workers have one: commands out, replies in. The load must weigh little beside what it
//! loads, so commands are packed once and sent many times, and replies are only looked at where somebody needs them.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis_protocol::resp2::decode::{decode, decode_range};
use redis_protocol::resp2::types::{OwnedFrame, RangeFrame};

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The most commands that are sent together.
pub(super) const LONGEST_PIPELINE: usize = 200;

/// What Redis replied.
pub(super) type Reply = OwnedFrame;

/// One connection over loopback.
pub(super) struct Wire {
    socket: TcpStream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// Commands packed one after the other, to be sent from any of them on.
#[derive(Debug, Default, Clone)]
pub(super) struct Load {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    next: usize,
}

impl Load {
    /// Add a command.
    pub(super) fn push(&mut self, words: &[&str]) {
        pack(&mut self.bytes, words);
        self.ends.push(self.bytes.len());
    }

    /// The load of many commands.
    pub(super) fn of<'a>(commands: impl Iterator<Item = Vec<&'a str>>) -> Self {
        let mut load = Self::default();
        commands.for_each(|words| load.push(&words));
        load.repeated()
    }

    /// The same commands again and again where they are fewer than a pipeline takes.
    pub(super) fn repeated(mut self) -> Self {
        let (bytes, ends) = (self.bytes.clone(), self.ends.clone());
        while self.ends.len() < LONGEST_PIPELINE && !ends.is_empty() {
            let from = self.bytes.len();
            self.bytes.extend_from_slice(&bytes);
            self.ends.extend(ends.iter().map(|end| from + end));
        }
        self
    }

    /// The bytes of the next `n` commands, from the first again after the last.
    pub(super) fn take(&mut self, n: usize) -> (&[u8], usize) {
        if self.next == self.ends.len() {
            self.next = 0;
        }
        let from = if self.next == 0 { 0 } else { self.ends[self.next - 1] };
        let last = (self.next + n).min(self.ends.len());
        let taken = last - self.next;
        self.next = last;
        (&self.bytes[from..self.ends[last - 1]], taken)
    }
}

fn pack(into: &mut Vec<u8>, words: &[&str]) {
    into.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        into.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        into.extend_from_slice(word.as_bytes());
        into.extend_from_slice(b"\r\n");
    }
}

fn refused(text: &str) -> io::Error {
    io::Error::other(format!("redis refused: {text}"))
}

impl Wire {
    /// Connect to the server on a loopback port.
    pub(super) fn open(port: u16) -> io::Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(ANSWER_WITHIN))?;
        Ok(Self { socket, buffer: vec![0; 1 << 18], start: 0, end: 0 })
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end * 2 > self.buffer.len() {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        match self.socket.read(&mut self.buffer[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.end += n;
                Ok(())
            }
        }
    }

    /// Send without waiting for an answer.
    pub(super) fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut bytes = Vec::new();
        pack(&mut bytes, words);
        self.socket.write_all(&bytes)
    }

    /// The next reply, whatever it is.
    pub(super) fn read(&mut self) -> io::Result<Reply> {
        loop {
            if self.start < self.end
                && let Some((reply, n)) = decode(&self.buffer[self.start..self.end]).map_err(io::Error::other)?
            {
                self.start += n;
                return Ok(reply);
            }
            self.fill()?;
        }
    }

    /// Pass over the next `n` replies; an error among them is one.
    fn skip(&mut self, n: usize) -> io::Result<()> {
        let mut left = n;
        while left > 0 {
            let unread = &self.buffer[self.start..self.end];
            match if unread.is_empty() { None } else { decode_range(unread).map_err(io::Error::other)? } {
                Some((RangeFrame::Error((from, to)), _)) => {
                    return Err(refused(&String::from_utf8_lossy(&unread[from..to])));
                }
                Some((_, n)) => {
                    self.start += n;
                    left -= 1;
                }
                None => self.fill()?,
            }
        }
        Ok(())
    }

    /// A command and its reply; a refusal is an error.
    pub(super) fn call(&mut self, words: &[&str]) -> io::Result<Reply> {
        self.send(words)?;
        match self.read()? {
            Reply::Error(why) => Err(refused(&format!("{}: {why}", words[0]))),
            reply => Ok(reply),
        }
    }

    /// A command that replies an integer.
    pub(super) fn int(&mut self, words: &[&str]) -> io::Result<i64> {
        match self.call(words)? {
            Reply::Integer(n) => Ok(n),
            other => Err(io::Error::other(format!("{}: no integer: {other:?}", words[0]))),
        }
    }

    /// A command that replies a text.
    pub(super) fn text(&mut self, words: &[&str]) -> io::Result<String> {
        let reply = self.call(words)?;
        text(&reply).map(str::to_owned).ok_or_else(|| io::Error::other(format!("{}: no text: {reply:?}", words[0])))
    }

    /// Send `n` commands of a load, `pipeline` at a time.
    pub(super) fn run(&mut self, load: &mut Load, n: usize, pipeline: usize) -> io::Result<()> {
        let mut left = n;
        while left > 0 {
            let (bytes, taken) = load.take(pipeline.min(left));
            self.socket.write_all(bytes)?;
            self.skip(taken)?;
            left -= taken;
        }
        Ok(())
    }

    /// Send commands of a load, `pipeline` at a time, for so long. Replies commands a second.
    pub(super) fn rate(&mut self, load: &mut Load, pipeline: usize, lasting: Duration) -> io::Result<f64> {
        let (start, mut sent) = (Instant::now(), 0);
        while start.elapsed() < lasting {
            self.run(load, pipeline, pipeline)?;
            sent += pipeline;
        }
        Ok(sent as f64 / start.elapsed().as_secs_f64())
    }

    /// A number of `INFO`, by the name of its line.
    pub(super) fn info(&mut self, section: &str, line: &str) -> io::Result<f64> {
        let text = self.text(&["INFO", section])?;
        let value = text.lines().find_map(|at| at.strip_prefix(line)?.strip_prefix(':'));
        value
            .and_then(|value| value.trim().parse().ok())
            .ok_or_else(|| io::Error::other(format!("INFO {section} has no number {line}")))
    }

    /// What a command cost the server since `CONFIG RESETSTAT`: calls and microseconds.
    pub(super) fn cost(&mut self, command: &str) -> io::Result<(f64, f64)> {
        let text = self.text(&["INFO", "commandstats"])?;
        let line = text.lines().find_map(|at| at.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(':'));
        let field = |name: &str| -> Option<f64> {
            line?.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.trim().parse().ok())
        };
        Ok((field("calls").unwrap_or(0.0), field("usec").unwrap_or(0.0)))
    }

    /// Read what is there, for at most 50 ms, and forget it. Replies whether there was something.
    pub(super) fn discard(&mut self) -> io::Result<bool> {
        self.socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        match self.socket.read(&mut self.buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Have every change of a key that begins so reported to this connection.
    pub(super) fn track(&mut self, prefix: &str) -> io::Result<()> {
        self.send(&["HELLO", "3"])?;
        self.send(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", prefix])
    }
}

/// The parts of an array; none for anything else (a read that found nothing replies null).
pub(super) fn parts(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(parts) => parts,
        _ => &[],
    }
}

/// The text of a reply; none for anything else.
pub(super) fn text(reply: &Reply) -> Option<&str> {
    match reply {
        Reply::BulkString(bytes) | Reply::SimpleString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}
