//! The figures in the documents are those of the bench's tables: `benches/publish.sh` puts them there, and nobody else.

use std::path::Path;
use std::process::Command;

use super::between;

#[test]
fn what_is_published_again_from_the_tables_on_the_page_changes_nothing() {
    let tree = tempfile::tempdir().expect("a directory");
    let read = |path: &str| std::fs::read_to_string(path).expect("a file");
    let write = |path: &str, text: &str| {
        let path = tree.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("written");
    };
    let (script, readme, page, all) =
        ("benches/publish.sh", "README.md", "docs/benchmarks.md", "docs/benchmarks-all.md");
    for path in [script, readme, page, all] {
        write(path, &read(path));
    }
    let part = |path, name| between(&read(path), name).1.replace("**not met**", "not met");
    write("target/bench/figures.md", &(part(all, "bench: machine") + &part(all, "bench: rows")));
    write("target/bench/peers.md", &part(page, "bench: peers"));
    for plot in plots(&read(script)).into_iter().chain(["peers".to_owned()]) {
        write(&format!("target/bench/{plot}.svg"), &read(&format!("docs/{plot}.svg")));
    }
    for figures in ["figures.json", "peers.json"] {
        write(&format!("target/bench/{figures}"), &read(&format!("docs/{figures}")));
    }
    let output = Command::new("sh").arg(tree.path().join(script)).output().expect("sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for path in [readme, page, all] {
        let published = std::fs::read_to_string(tree.path().join(path)).expect("published");
        let tables = format!("the tables in {all} and {page}");
        assert!(published == read(path), "{path} differs from what benches/publish.sh makes of {tables}");
    }
}

#[test]
fn every_plot_that_is_published_is_shown() {
    let shown = ["README.md", "docs/benchmarks.md"].map(|path| std::fs::read_to_string(path).expect("a page")).concat();
    let plots = plots(&std::fs::read_to_string("benches/publish.sh").expect("a script"));
    assert!(plots.len() >= 3, "{plots:?}");
    for plot in plots {
        assert!(shown.contains(&format!("{plot}.svg)")), "{plot}.svg is on no page");
        assert!(Path::new(&format!("docs/{plot}.svg")).exists(), "docs/{plot}.svg is missing");
    }
}

/// The plots that the script copies, from its `for plot in a b c; do`.
fn plots(script: &str) -> Vec<String> {
    let list = script.split("for plot in ").nth(1).and_then(|rest| rest.split(';').next()).expect("a list of plots");
    list.split_whitespace().map(str::to_owned).collect()
}
