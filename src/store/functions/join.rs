//! Joins the Lua files of the function library (`src/store/functions`) to one, in the order that follows from what each needs: its first lines
//! name it, as `-- needs: base, policy.record`. A file has the name of its path, `policy/record.lua` is `policy.record`; that of a folder's
//! main file is the folder's, `route/route.lua` is `route`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

const FOLDER: &str = "src/store/functions";

/// A file of the library.
struct File {
    path: PathBuf,
    needs: BTreeSet<String>,
    source: String,
}

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={FOLDER}");
    let folder = env::var_os("OUT_DIR").expect("cargo says where");
    fs::write(Path::new(&folder).join("library.lua"), join(Path::new(FOLDER))?)
}

/// The library of the files in a folder.
///
/// # Errors
///
/// Where a file cannot be read, or what they need is missing or a circle.
pub fn join(folder: &Path) -> io::Result<String> {
    let mut files = BTreeMap::new();
    read_folder(folder, folder, &mut files)?;
    let order = in_order(&files).map_err(|why| io::Error::other(format!("{}: {why}", folder.display())))?;
    let mut library = "#!lua name=dripd\n".to_owned();
    for name in order {
        library += &format!("-- ---- {} ----\n{}", files[&name].path.display(), files[&name].source);
    }
    Ok(library)
}

/// The files of a folder and of those in it, by name.
fn read_folder(top: &Path, folder: &Path, files: &mut BTreeMap<String, File>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_folder(top, &path, files)?;
        } else if path.extension().is_some_and(|end| end == "lua") {
            let source = fs::read_to_string(&path)?;
            let path = path.strip_prefix(top).expect("it is in there").to_owned();
            files.insert(name_of(&path), File { needs: needs_of(&source), path, source });
        }
    }
    Ok(())
}

fn name_of(path: &Path) -> String {
    let parts: Vec<String> =
        path.with_extension("").iter().map(|part| part.to_str().expect("a name in ASCII").to_owned()).collect();
    match &parts[..] {
        [folder, file] if folder == file => folder.clone(),
        parts => parts.join("."),
    }
}

/// What the first lines say: `-- needs: a, b,`, and on further lines `--   c, d`; `nothing` is no name.
fn needs_of(source: &str) -> BTreeSet<String> {
    let mut lines = source.lines();
    let first = lines.next().and_then(|line| line.strip_prefix("-- needs: ")).unwrap_or_default();
    let further = lines.map_while(|line| line.strip_prefix("--   "));
    let names = std::iter::once(first).chain(further).flat_map(|line| line.split(','));
    names.map(str::trim).filter(|name| !name.is_empty() && *name != "nothing").map(str::to_owned).collect()
}

/// Each file after those that it needs, and otherwise by name.
fn in_order(files: &BTreeMap<String, File>) -> Result<Vec<String>, String> {
    let mut order: Vec<String> = Vec::new();
    for (name, file) in files {
        if file.needs.is_empty() && name != "base" {
            return Err(format!("{} does not begin with what it needs", file.path.display()));
        }
        if let Some(missing) = file.needs.iter().find(|need| !files.contains_key(*need)) {
            return Err(format!("{} needs {missing}, which is not there", file.path.display()));
        }
    }
    while order.len() < files.len() {
        let is_next =
            |name: &String| !order.contains(name) && files[name].needs.iter().all(|need| order.contains(need));
        let Some(next) = files.keys().find(|name| is_next(name)) else {
            let left: Vec<&str> = files.keys().filter(|name| !order.contains(name)).map(String::as_str).collect();
            return Err(format!("a circle of needs is among {}", left.join(", ")));
        };
        order.push(next.clone());
    }
    Ok(order)
}
