//! Bytes as text that is safe on a terminal: one line, no control characters, no marks that turn the reading direction,
//! nothing invisible.
//!
//! Values from outside are [`escaped`] where a sentence is built from them. All output also passes [`line()`],
//! [`lines`] or [`escaped_json`], so that a value which somebody forgot to escape cannot control a terminal either.

use std::borrow::Cow;

/// Whether a character may be shown unchanged: it is visible, does not control the terminal, and does not change how
/// its neighbours read.
pub fn is_visible(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // These characters belong to visible categories of Unicode, yet nobody sees them: fillers and variation selectors.
    let is_blank = matches!(
        c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}'
    );
    // The standard library knows the rest: control, format and unassigned characters, and blanks other than the space.
    // `c` is tested after a letter, because at the beginning of a text `escape_debug` escapes combining marks too.
    let mut behind = [b'a'; 5];
    let length = 1 + c.encode_utf8(&mut behind[1..]).len();
    let is_printed = std::str::from_utf8(&behind[..length]).is_ok_and(|two| two.escape_debug().count() == 2);
    is_printed && !is_blank
}

/// Whether a character is a combining mark, drawn on the character before it. Invisible non-ASCII characters count too.
fn is_mark(c: char) -> bool {
    !c.is_ascii() && c.escape_debug().len() > 1
}

fn escaped_char(c: char) -> String {
    let usual = c.escape_debug();
    if usual.len() > 1 { usual.to_string() } else { c.escape_unicode().to_string() }
}

/// One character that must not merge with its neighbours: an invisible character or a combining mark is escaped.
pub fn alone(c: char) -> String {
    if is_visible(c) && !is_mark(c) { c.to_string() } else { escaped_char(c) }
}

/// All bytes as text. Bytes that are not UTF-8 become `\xff`. Control characters, marks that turn the reading direction
/// and other invisible characters become `\n` or `\u{202e}`; so does a combining mark with nothing to stand on. A
/// backslash is doubled, so that no two values look the same.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for (at, c) in chunk.valid().char_indices() {
            match c {
                '\\' => text += "\\\\",
                c if is_visible(c) && !(at == 0 && is_mark(c)) => text.push(c),
                c => text += &escaped_char(c),
            }
        }
        for byte in chunk.invalid() {
            text += &format!("\\x{byte:02x}");
        }
    }
    text
}

/// A line for output: every invisible character is escaped, line feeds included. Backslashes stay as they are.
pub fn line(text: &str) -> Cow<'_, str> {
    going_out(text, is_visible)
}

/// Several lines for output: every invisible character but the line feed is escaped.
pub fn lines(text: &str) -> Cow<'_, str> {
    going_out(text, |c| c == '\n' || is_visible(c))
}

fn going_out(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(&is_kept) {
        return Cow::Borrowed(text);
    }
    let piece = |c| if is_kept(c) { String::from(c) } else { escaped_char(c) };
    Cow::Owned(text.chars().map(piece).collect())
}

/// A name or glob as it is typed in a shell, quoted where it must be. One with invisible characters becomes `$'…'`,
/// which bash and zsh read.
pub fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | ':' | '_' | '-' | '/' | '@' | '+' | ',');
    let piece = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if is_visible(c) => c.to_string(),
        c => format!("\\U{:08x}", u32::from(c)),
    };
    if !text.chars().all(is_visible) {
        return format!("$'{}'", text.chars().map(piece).collect::<String>());
    }
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// The words about a byte order mark at the beginning of some bytes. Editors and exports write one where nobody sees it;
/// it is no white space, and JSON allows none.
pub fn byte_order_mark(bytes: &[u8]) -> Option<&'static str> {
    bytes.starts_with(b"\xef\xbb\xbf").then_some("a byte order mark (BOM, ef bb bf): write UTF-8 without one")
}

/// The beginning of some bytes, escaped: at most `most` bytes, followed by the total size if there are more.
pub fn excerpt(bytes: &[u8], most: usize) -> String {
    if bytes.is_empty() {
        return "(0 bytes)".to_owned();
    }
    if bytes.len() <= most {
        return escaped(bytes);
    }
    // The cut must not fall inside a character: its further bytes begin with the bits 10, and there are at most three.
    let is_middle = |at: usize| bytes[at] & 0b1100_0000 == 0b1000_0000;
    let end = (most.saturating_sub(3)..=most).rev().find(|at| !is_middle(*at)).unwrap_or(most);
    format!("{}… ({} bytes)", escaped(&bytes[..end]), bytes.len())
}

/// JSON text in which every invisible character is written as an escape of JSON, which does not change its meaning.
/// Line feeds stay: they occur only between the values of JSON text, never within a string.
pub fn escaped_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || is_visible(c) {
            text.push(c);
        } else {
            text.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_the_cursor_or_hides_itself_is_shown_as_it_is() {
        for (bytes, text) in [
            (&b"{\"to\": 'x'}"[..], "{\"to\": 'x'}"),
            ("Zürich \u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947} 🙂".as_bytes(), "Zürich नमस्ते 🙂"),
            (b"a\nb\r\t\0\x1b[2J\x7f", r"a\nb\r\t\0\u{1b}[2J\u{7f}"),
            ("\u{9b}2J\u{85}".as_bytes(), r"\u{9b}2J\u{85}"),
            ("\u{202e}abc\u{2066}\u{200f}\u{feff}\u{2028}".as_bytes(), r"\u{202e}abc\u{2066}\u{200f}\u{feff}\u{2028}"),
            (b"\xff\xfeok\xc3", r"\xff\xfeok\xc3"),
            ("\u{ad}\u{200b}\u{2063}\u{61c}\u{e0041}".as_bytes(), r"\u{ad}\u{200b}\u{2063}\u{61c}\u{e0041}"),
            ("a\u{3164}b\u{2800}c\u{fe0f}".as_bytes(), r"a\u{3164}b\u{2800}c\u{fe0f}"),
            ("\u{301}e\u{301}".as_bytes(), "\\u{301}e\u{301}"),
            (br"\n", r"\\n"),
            (b"", ""),
        ] {
            assert_eq!(escaped(bytes), text);
        }
    }

    #[test]
    fn what_goes_out_keeps_its_own_backslashes_and_the_ends_of_its_lines_where_it_has_several() {
        assert_eq!(line("a\\n\u{1b}[2J\nb\u{202e}"), r"a\n\u{1b}[2J\nb\u{202e}");
        assert_eq!(lines("a\\n\u{1b}[2J\nb\u{202e}"), "a\\n\\u{1b}[2J\nb\\u{202e}");
        assert_eq!(lines("Zürich नमस्ते 🙂\n"), "Zürich नमस्ते 🙂\n");
        assert_eq!(
            ["é", "\u{301}", "\u{9b}"].map(|c| alone(c.chars().next().expect("one"))),
            ["é", r"\u{301}", r"\u{9b}"]
        );
    }

    #[test]
    fn a_name_on_a_command_line_can_be_typed_as_it_is_shown() {
        let typed = [("a:b", "a:b"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("a\u{202e}'\\", r"$'a\U0000202e\'\\'")];
        for (name, shown) in typed {
            assert_eq!(shell(name), shown);
        }
    }

    #[test]
    fn no_control_and_no_format_character_is_seen() {
        let controls = (0..0x20).chain(0x7f..0xa0);
        let formats = [
            0xad, 0x600, 0x61c, 0x6dd, 0x70f, 0x8e2, 0x180e, 0xfeff, 0xfff9, 0x110bd, 0x13430, 0x1bca0, 0x1d173,
            0xe0001,
        ];
        let ranges = (0x200b..=0x200f).chain(0x2028..=0x202e).chain(0x2060..=0x206f).chain(0xe0020..=0xe007f);
        for c in controls.chain(formats).chain(ranges).map(|c| char::from_u32(c).expect("a character")) {
            assert!(!is_visible(c), "{:x}", u32::from(c));
        }
    }

    #[test]
    fn an_excerpt_ends_between_two_characters_and_says_how_much_there_is() {
        assert_eq!(excerpt(b"", 5), "(0 bytes)");
        assert_eq!(excerpt(b"12345", 5), "12345");
        assert_eq!(excerpt(b"123456", 5), "12345… (6 bytes)");
        assert_eq!(excerpt("aé🙂🙂".as_bytes(), 5), "aé… (11 bytes)");
        assert_eq!(excerpt(&[0x80; 9], 5), format!("{}… (9 bytes)", r"\x80".repeat(5)));
    }

    #[test]
    fn json_says_the_same_in_bytes_that_are_safe_to_show() {
        let json = "{\"a\":\"\u{202e}é🙂\u{7f}\u{9b}\u{e0041}\"}";
        let safe = escaped_json(json);
        assert_eq!(safe, r#"{"a":"\u202eé🙂\u007f\u009b\udb40\udc41"}"#);
    }
}
