//! Man pages and completions, made from the definition of the command line, so that they say what the helps say.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man as Page;
use clap_mangen::roff::{Roff, bold, roman};

use super::help::Notes;
use super::{Exit, Failure, command, print};

/// `dripd completions <shell>`.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command(), "dripd", &mut text);
        print(&text)
    }
}

/// `dripd man <dir>`, for those who make packages.
#[derive(Debug, Args)]
pub(super) struct Man {
    /// Where they go; made where it is missing
    dir: PathBuf,
}

impl Man {
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        let cannot = |path: &PathBuf, why: &std::io::Error| {
            Failure::new(Exit::Failed, format!("cannot write {}: {why}", path.display()))
        };
        std::fs::create_dir_all(&self.dir).map_err(|why| cannot(&self.dir, &why))?;
        for (name, text) in pages()? {
            let path = self.dir.join(name);
            std::fs::write(&path, text).map_err(|why| cannot(&path, &why))?;
        }
        Ok(Exit::Done)
    }
}

/// Every page by the name of its file: one for the program, and one for each command that is not hidden.
fn pages() -> std::io::Result<Vec<(String, Vec<u8>)>> {
    commands()
        .into_iter()
        .filter(|(_, command)| !command.is_hide_set())
        .map(|(name, command)| page(&name, command))
        .collect()
}

/// The program, every command, and every command of a command, by what is typed for it.
fn commands() -> Vec<(String, Command)> {
    let mut program = command();
    program.build();
    let mut all = vec![("dripd".to_owned(), program.clone())];
    for command in below(&program) {
        let name = command.get_name().to_owned();
        let parts = below(&command).into_iter().map(|part| (format!("{name} {}", part.get_name()), part));
        let parts: Vec<_> = parts.collect();
        all.push((name, command));
        all.extend(parts);
    }
    all
}

/// The commands below one, except `help`, which says what `--help` says.
fn below(command: &Command) -> Vec<Command> {
    command.get_subcommands().filter(|command| command.get_name() != "help").cloned().collect()
}

/// A page, with the name of its file. Notes that end a help stand under the headings that man pages have for them.
fn page(name: &str, command: Command) -> std::io::Result<(String, Vec<u8>)> {
    let (notes, has_commands) = (Notes::of(name), command.has_subcommands());
    let command = command.disable_help_subcommand(true);
    let page = Page::new(command).source(concat!("dripd ", env!("CARGO_PKG_VERSION"))).manual("dripd");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    if let Some(notes) = notes.filter(|notes| !notes.about.is_empty()) {
        let mut about = Roff::new();
        about.control("PP", []);
        about.text([roman(notes.about)]);
        about.to_writer(&mut text)?;
    }
    page.render_options_section(&mut text)?;
    if has_commands {
        page.render_subcommands_section(&mut text)?;
    }
    if let Some(notes) = notes {
        notes_of(notes).to_writer(&mut text)?;
    }
    Ok((page.get_filename(), text))
}

fn notes_of(notes: &Notes) -> Roff {
    let mut roff = Roff::new();
    let exits: Vec<_> = notes.exits().into_iter().map(|(code, meaning)| (code.to_string(), meaning)).collect();
    terms(&mut roff, "EXIT STATUS", exits.iter().map(|(code, meaning)| (code.as_str(), *meaning)));
    for (heading, entries) in notes.more {
        terms(&mut roff, heading, entries.iter().copied());
    }
    roff.control("SH", ["EXAMPLES"]);
    for (purpose, lines) in notes.examples {
        roff.control("PP", []);
        roff.text([roman(format!("{purpose}:"))]);
        roff.control("PP", []);
        roff.control("RS", ["4"]);
        roff.control("nf", []);
        for line in lines.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        roff.control("RE", []);
    }
    roff
}

/// A section of terms and their meanings.
fn terms<'a>(roff: &mut Roff, heading: &str, entries: impl Iterator<Item = (&'a str, &'a str)>) {
    roff.control("SH", [heading]);
    for (term, meaning) in entries {
        roff.control("TP", []);
        roff.text([bold(term)]);
        roff.text([roman(meaning)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_help_ends_with_examples_and_exit_codes() {
        for (name, command) in commands() {
            let notes = Notes::of(&name).unwrap_or_else(|| panic!("`{name}` has no notes: add them in src/cli/help"));
            assert!(!notes.examples.is_empty() && !notes.exits().is_empty(), "{name}");
            assert!(notes.exits().contains_key(&2), "{name}: a wrong command line");
            let help = command.clone().render_long_help().to_string();
            assert!(help.trim_end().ends_with(notes.ending().trim_end()), "{name}: {help}");
            for line in notes.ending().lines() {
                assert!(line.len() <= 80, "{name}: a terminal has 80 columns: {line}");
            }
        }
    }

    #[test]
    fn every_example_is_a_command_line_that_dripd_takes() {
        let mut tried = 0;
        for (_, lines) in commands().iter().filter_map(|(name, _)| Notes::of(name)).flat_map(|notes| notes.examples) {
            let text = lines.replace("\\\n", " ");
            for part in text.split(['\n', '|']).flat_map(|part| part.split("&&")) {
                let words: Vec<String> = words(part.split(" >").next().unwrap_or_default());
                let words: Vec<&str> = words.iter().map(String::as_str).skip_while(|word| word.contains('=')).collect();
                if words.first() != Some(&"dripd") || words.contains(&"--help") {
                    continue;
                }
                tried += 1;
                command().try_get_matches_from(&words).unwrap_or_else(|why| panic!("{words:?}: {why}"));
            }
        }
        assert!(tried > 40, "{tried}");
    }

    /// The words of a command line, split as a shell does, with single quotes.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('\'').enumerate();
        parts
            .fold(vec![String::new()], |mut words, (at, part)| {
                if at % 2 == 1 {
                    words.last_mut().expect("one at least").push_str(part);
                    return words;
                }
                for c in part.chars() {
                    match (c.is_whitespace(), words.last_mut()) {
                        (true, Some(word)) if !word.is_empty() => words.push(String::new()),
                        (false, Some(word)) => word.push(c),
                        _ => {}
                    }
                }
                words
            })
            .into_iter()
            .filter(|word| !word.is_empty())
            .collect()
    }

    #[test]
    fn every_command_has_a_page_and_every_option_stands_on_it() {
        let pages = pages().expect("text");
        let shown: Vec<_> = commands().into_iter().filter(|(_, command)| !command.is_hide_set()).collect();
        assert_eq!(pages.len(), shown.len());
        for ((name, command), (file, text)) in shown.iter().zip(&pages) {
            let text = String::from_utf8(text.clone()).expect("text").replace("\\-", "-");
            let expected = if name == "dripd" { name.clone() } else { format!("dripd-{}", name.replace(' ', "-")) };
            assert_eq!(file, &format!("{expected}.1"));
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(text.contains(&format!("--{option}")), "{file}: --{option}");
            }
            for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES"] {
                assert!(text.contains(heading), "{file}: {heading}");
            }
        }
    }
}
