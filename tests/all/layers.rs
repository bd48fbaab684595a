//! The shape of the source: imports point down, and only the store knows Redis.

use std::path::{Path, PathBuf};

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let (dirs, found): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let below = dirs.iter().flat_map(|dir| files(dir, extension));
    found.into_iter().filter(|path| path.extension().is_some_and(|e| e == extension)).chain(below).collect()
}

#[test]
fn only_the_store_names_the_redis_crate_and_no_loop_imports_another() {
    for path in files(Path::new("src"), "rs") {
        let source = std::fs::read_to_string(&path).expect("a file").replace("built_in_redis::", "");
        assert!(
            path.starts_with("src/store") || !source.contains("redis::"),
            "{} names the redis crate",
            path.display()
        );
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        for other in ["pacer", "reaper", "reconciler", "worker"] {
            let is_loop = ["pacer", "reaper", "reconciler"].contains(&stem) || path.starts_with("src/worker");
            let itself = stem == other || path.starts_with(format!("src/{other}"));
            let imports = source.contains(&format!("::{other}::"));
            assert!(!is_loop || itself || !imports, "{} imports {other}", path.display());
        }
    }
}

#[test]
fn every_lua_file_is_part_of_the_library() {
    for path in files(Path::new("src/store/functions"), "lua") {
        let source = std::fs::read_to_string(&path).expect("a file");
        assert!(dripd::store::library::SOURCE.contains(&source), "{} is not joined in", path.display());
    }
}
