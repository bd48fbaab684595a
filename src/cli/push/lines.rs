//! The lines of a file or a pipe, read in bounded memory: a line that is too large is read to its end and not kept.

use std::io::BufRead as _;

use indicatif::ProgressBar;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// The bytes that are read at once.
const CHUNK: usize = 65_536;

/// The source of the lines.
pub(super) type Input = Box<dyn AsyncRead + Unpin>;

/// A line that is not empty, with its number, counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A job.
    Job(u64, Vec<u8>),
    /// A line with more bytes than a job may have, and how many they are.
    TooLarge(u64, u64),
}

/// A reader of lines. A line ends at `\n`; the last one needs none; empty lines are skipped.
pub(super) struct Lines {
    input: BufReader<Input>,
    /// The most bytes of a job.
    most: u64,
    /// The first line that is wanted: earlier ones are only counted.
    from: u64,
    /// The number of the line that is being read.
    number: u64,
    /// The bytes of that line so far, unless they are too many, and their number.
    job: Vec<u8>,
    bytes: u64,
    bar: ProgressBar,
}

impl Lines {
    pub(super) fn new(input: Input, most: u64, from: u64, bar: ProgressBar) -> Self {
        let input = BufReader::with_capacity(CHUNK, input);
        Self { input, most, from, number: 1, job: Vec::new(), bytes: 0, bar }
    }

    /// The number of the first line that [`Self::next`] has neither returned nor skipped.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line; `None` at the end. A future that is dropped loses nothing: the next call continues where it
    /// stopped.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            let chunk = self.input.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(if self.bytes == 0 { None } else { self.end_line() });
            }
            let mut rest = chunk;
            let n = rest.skip_until(b'\n')?; // reading a slice cannot fail
            let part = chunk[..n].strip_suffix(b"\n").unwrap_or(&chunk[..n]);
            let is_whole = part.len() < n;
            self.bytes += part.len() as u64;
            if self.bytes > self.most || self.number < self.from {
                self.job = Vec::new();
            } else {
                self.job.extend_from_slice(part);
            }
            self.input.consume(n);
            self.bar.inc(n as u64);
            if is_whole && let Some(line) = self.end_line() {
                return Ok(Some(line));
            }
        }
    }

    /// End the line and return it; `None` for an empty line, and for one that is not wanted.
    fn end_line(&mut self) -> Option<Line> {
        let (number, job) = (self.number, std::mem::take(&mut self.job));
        let bytes = std::mem::take(&mut self.bytes);
        self.number += 1;
        match bytes {
            _ if number < self.from => None,
            0 => None,
            bytes if bytes > self.most => Some(Line::TooLarge(number, bytes)),
            _ => Some(Line::Job(number, job)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &'static [u8], most: u64) -> Vec<Line> {
        lines_from(1, text, most)
    }

    fn lines_from(first: u64, text: &'static [u8], most: u64) -> Vec<Line> {
        let mut lines = Lines::new(Box::new(text), most, first, ProgressBar::hidden());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut all = Vec::new();
            while let Some(line) = lines.next().await.expect("bytes") {
                all.push(line);
            }
            all
        })
    }

    #[test]
    fn a_line_ends_at_its_newline_and_the_last_needs_none() {
        let job = |number, job: &[u8]| Line::Job(number, job.to_vec());
        assert_eq!(lines(b"", 9), []);
        assert_eq!(lines(b"\n\n", 9), []);
        assert_eq!(lines(b"a\r\n\n\xff\0\nlast", 9), [job(1, b"a\r"), job(3, b"\xff\0"), job(4, b"last")]);
    }

    #[test]
    fn lines_before_the_first_one_that_is_wanted_are_counted_and_passed_over() {
        let text = b"a\n\n123456\nd\n123456\nf";
        assert_eq!(
            lines_from(4, text, 5),
            [Line::Job(4, b"d".to_vec()), Line::TooLarge(5, 6), Line::Job(6, b"f".to_vec())]
        );
        assert_eq!(lines_from(6, text, 5), [Line::Job(6, b"f".to_vec())]);
        assert_eq!(lines_from(7, text, 5), []);
    }

    #[test]
    fn a_line_that_is_too_large_is_counted_and_not_kept() {
        let job = |number, job: &[u8]| Line::Job(number, job.to_vec());
        assert_eq!(
            lines(b"12345\n123456\n12\n123456", 5),
            [job(1, b"12345"), Line::TooLarge(2, 6), job(3, b"12"), Line::TooLarge(4, 6)]
        );
        let endless = tokio::io::AsyncReadExt::take(tokio::io::repeat(b'x'), 3 * CHUNK as u64);
        let mut long = Lines::new(Box::new(endless), 5, 1, ProgressBar::hidden());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let line = runtime.block_on(long.next()).expect("bytes");
        assert_eq!(line, Some(Line::TooLarge(1, 3 * CHUNK as u64)));
        assert_eq!(long.job.capacity(), 0, "nothing of it is kept");
    }
}
