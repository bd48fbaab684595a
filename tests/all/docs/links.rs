//! Every link that stays in the tree leads somewhere.

use std::path::{Component, Path, PathBuf};

use super::{Page, pages};

/// A path without `.` and `..`; `None` when it leaves the tree.
fn resolve(from: &Path, link: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for part in from.parent().expect("a page stands in a folder").join(link).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => path.pop().then_some(())?,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

/// Why a link leads nowhere; `None` when it is good or leaves the tree for the web.
fn broken(link: &str, page: &Page, pages: &[Page]) -> Option<String> {
    if link.starts_with("https://") || link.starts_with("http://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { Some(page.path.clone()) } else { resolve(&page.path, file) };
    let Some(path) = path else { return Some("leaves the tree".to_owned()) };
    if !path.exists() {
        return Some(format!("there is no {}", path.display()));
    }
    let anchor = anchor?;
    let Some(target) = pages.iter().find(|page| page.path == path) else {
        return Some(format!("{} has no headings", path.display()));
    };
    let exists = target.anchors.iter().any(|have| have == anchor);
    (!exists).then(|| format!("{} has no such heading; it has {}", path.display(), target.anchors.join(", ")))
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let pages = pages();
    let mut checked = 0;
    let mut wrong = Vec::new();
    for page in &pages {
        checked += page.links.len();
        let of_page = page.links.iter().filter_map(|link| Some((link, broken(link, page, &pages)?)));
        wrong.extend(of_page.map(|(link, why)| format!("{}: {link}: {why}", page.name())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 50, "only {checked} links in {} pages", pages.len());
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let pages = pages();
    let readme = pages.iter().find(|page| page.path == Path::new("README.md")).expect("a README");
    let says = |link| broken(link, readme, &pages);
    for good in
        ["config.toml", "docs/benchmarks.md", "#five-minutes", "docs/../README.md#what-is-promised", "https://x.org/y"]
    {
        assert_eq!(says(good), None, "{good}");
    }
    for bad in ["docs/nothing.md", "#nothing", "docs/benchmarks.md#nothing", "../x", "/etc/passwd", "config.toml#L3"] {
        assert!(says(bad).is_some(), "{bad}");
    }
}

/// Pages that are made from the source, or of the figures of the bench: they are looked up, not read.
const MADE: [&str; 5] = ["benchmarks-all", "commands", "endpoints", "functions", "metrics"];

/// How many words a page has, without the parts that are made: those between a mark such as `<!-- keys: redis -->` and its end.
fn words(text: &str) -> usize {
    let (mut count, mut is_made) = (0, false);
    for line in text.lines() {
        is_made = if line.starts_with("<!-- ") { line != "<!-- end -->" } else { is_made };
        count += if is_made { 0 } else { line.split_whitespace().count() };
    }
    count
}

#[test]
fn the_readme_and_the_pages_are_short() {
    let readme = std::fs::read_to_string("README.md").expect("a README");
    let longest = readme.lines().map(|line| line.chars().count()).max().expect("a line");
    let size = (readme.lines().count(), longest, readme.split_whitespace().count());
    assert!(size.0 <= 150 && size.1 <= 120 && size.2 <= 1_500, "the README has (lines, columns, words) {size:?}");
    let pages = pages();
    let is_written = |page: &&Page| {
        let name = page.path.file_stem().expect("a name").to_string_lossy();
        page.path.starts_with("docs") && !MADE.contains(&&*name)
    };
    let all: usize = pages.iter().filter(is_written).map(|page| words(&page.text)).sum::<usize>() + words(&readme);
    println!("README.md: {} lines, {} columns, {} words; all pages: {all} words", size.0, size.1, size.2);
    assert!(all <= 32_500, "{all} words are in the pages: each fact stands in one place");
    let changes = std::fs::read_to_string("CHANGELOG.md").expect("a changelog").lines().count();
    assert!(changes <= 60, "{changes} lines in the changelog of the first version");
}

/// The words in backticks of a text that look like the name of a test: lower case, with four underscores or more, and no metric.
fn test_names(text: &str) -> Vec<&str> {
    let is_name = |word: &&str| {
        word.matches('_').count() >= 4
            && !word.starts_with("dripd_")
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    text.split('`').filter(is_name).collect()
}

#[test]
fn every_test_that_the_documents_name_is_there() {
    let mut source = String::new();
    let mut folders = ["tests/all", "tests/tools", "src"].map(PathBuf::from).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                source += &std::fs::read_to_string(path).expect("source");
            }
        }
    }
    let pages = pages();
    let named: Vec<(String, &str)> =
        pages.iter().flat_map(|page| test_names(&page.text).into_iter().map(|name| (page.name(), name))).collect();
    assert!(named.len() >= 20, "{named:?}");
    for (page, name) in named {
        assert!(source.contains(&format!("fn {name}(")), "{page}: there is no test {name}");
    }
}
