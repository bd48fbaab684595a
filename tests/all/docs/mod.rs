//! The documents: their links lead somewhere, what they say of the configuration is what the code knows, and the commands
//! that they show do what they say.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

mod blocks;
mod configuration;
mod engine;
mod figures;
mod links;
mod python;
mod reference;
mod schema;

/// A page, and what the tests want to know of it.
struct Page {
    path: PathBuf,
    text: String,
    /// The anchors of its headings, as GitHub makes them.
    anchors: Vec<String>,
    /// Where its links and images lead, as written.
    links: Vec<String>,
    /// Its fenced code blocks in their order: what stands behind the fence, and the text.
    blocks: Vec<(String, String)>,
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).expect("a page");
        let mut page = Self { path, text: String::new(), anchors: Vec::new(), links: Vec::new(), blocks: Vec::new() };
        let (mut heading, mut block, mut seen) = (None::<String>, None::<(String, String)>, HashMap::new());
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().expect("it has begun"));
                    let n = seen.entry(slug.clone()).and_modify(|n| *n += 1).or_insert(0);
                    page.anchors.push(if *n == 0 { slug } else { format!("{slug}-{n}") });
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Html(html) | Event::InlineHtml(html) => page.links.extend(links_of_html(&html)),
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    block = Some((info.into_string(), String::new()));
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some((_, block)) = &mut block {
                        block.push_str(&text);
                    } else if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page.text = text;
        page
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// The anchor of a heading: small letters, no punctuation, hyphens for spaces.
fn slug(heading: &str) -> String {
    let keep = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(|c| keep(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// What the attributes `src`, `srcset` and `href` of a piece of HTML name.
fn links_of_html(html: &str) -> Vec<String> {
    let values = ["src=\"", "srcset=\"", "href=\""].into_iter().flat_map(|name| html.split(name).skip(1));
    values.filter_map(|rest| rest.split_once('"')).map(|(value, _)| value.to_owned()).collect()
}

/// Every page of the tree.
fn pages() -> Vec<Page> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let listed = std::fs::read_dir(if folder == Path::new("") { Path::new(".") } else { &folder });
        for entry in listed.expect("a folder") {
            let entry = entry.expect("an entry");
            let (name, path) = (entry.file_name(), folder.join(entry.file_name()));
            let name = name.to_string_lossy();
            if entry.file_type().expect("a type").is_dir() {
                // What is built, installed or kept by others is none of ours.
                if !name.starts_with('.') && !["target", "node_modules", "dripd-data"].contains(&&*name) {
                    folders.push(path);
                }
            } else if name.ends_with(".md") {
                found.push(Page::read(path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The lines of a page between `<!-- <name> -->` and the next `<!-- end -->`, and where they stand.
fn between<'a>(text: &'a str, name: &str) -> (usize, &'a str) {
    let marker = format!("<!-- {name} -->\n");
    let from = text.find(&marker).unwrap_or_else(|| panic!("no line {marker:?}")) + marker.len();
    let length = text[from..].find("<!-- end -->").unwrap_or_else(|| panic!("{name} has no end"));
    (from, &text[from..from + length])
}
