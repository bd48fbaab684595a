//! `--rejected FILE`: a file for the lines whose bucket had no room, each unchanged, for another try.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The file, open for writing.
pub(super) struct Refused {
    path: PathBuf,
    file: File,
}

impl Refused {
    /// Open the file. It is emptied, unless this push continues an earlier one.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, or is the very file that is read.
    pub(super) fn open(path: &Path, input: &Path, goes_on: bool) -> Result<Self, String> {
        let cannot = |why: &dyn std::fmt::Display| format!("cannot write {}: {why}", path.display());
        let file = |path: &Path| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
        if let (Some(one), Some(other)) = (file(path), file(input))
            && (one.dev(), one.ino()) == (other.dev(), other.ino())
        {
            return Err(cannot(&"it is the file that is read; name another one"));
        }
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(!goes_on).append(goes_on);
        let file = options.open(path).map_err(|why| cannot(&why))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Add lines. They are in the file when this returns.
    ///
    /// # Errors
    ///
    /// The lines cannot be written, as on a full disk.
    pub(super) fn add<'a>(&mut self, lines: impl Iterator<Item = &'a [u8]>) -> Result<(), String> {
        let text = lines.fold(Vec::new(), |mut text, line| {
            text.extend_from_slice(line);
            text.push(b'\n');
            text
        });
        let before = self.file.metadata().ok().filter(std::fs::Metadata::is_file);
        self.file.write_all(&text).map_err(|why| {
            if let Some(before) = before {
                let _ = self.file.set_len(before.len()); // no partial line: the lines are reported, and pushed again
            }
            format!("cannot write {}: {why}", self.path.display())
        })
    }
}
