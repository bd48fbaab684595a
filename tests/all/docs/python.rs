//! The worker loop in Python is the same wherever it is shown. That it works, a test of `tests/tools` shows.

use std::path::Path;

use super::pages;

/// The loop as a page shows it: its first block in Python.
fn shown_in(path: &str) -> String {
    let pages = pages();
    let page = pages.iter().find(|page| page.path == Path::new(path)).expect("a page");
    let found = page.blocks.iter().find(|(info, _)| info == "python");
    found.unwrap_or_else(|| panic!("{path} shows no loop in Python")).1.clone()
}

#[test]
fn the_readme_the_lesson_and_the_page_on_workers_show_the_same_loop_in_python() {
    for page in ["docs/first-drip.md", "docs/workers.md"] {
        assert_eq!(shown_in("README.md"), shown_in(page), "{page}");
    }
}
