//! The workflows of `.github`: what a linter of their security says. They run at a public host only, so nothing of what they do is tried here.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clients::python_with;
use crate::shell::said;

fn linter() -> PathBuf {
    let is_here = "importlib.metadata as metadata; metadata.version('zizmor')";
    python_with("zizmor", is_here, &["zizmor"]).with_file_name("zizmor")
}

/// What the linter finds in a workflow or in a folder of them: nothing, or its report.
fn findings(path: &Path) -> Option<String> {
    let (code, out, err) =
        said(&Command::new(linter()).args(["--offline", "--no-progress"]).arg(path).output().expect("it runs"));
    assert!(code == 0 || code >= 10, "the linter itself failed: {code} {err}"); // 11 to 14: the worst finding
    (code != 0).then_some(out)
}

fn the_workflows_have_the_least_rights_and_pinned_actions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows");
    assert_eq!(findings(&folder), None);
    let home = tempfile::tempdir().expect("a folder");
    for (was, is, name) in [
        ("@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2", "@v4", "unpinned-uses"),
        ("push:\n    tags: [\"v*\"]\n", "pull_request_target:\n", "dangerous-triggers"),
        ("\"${GITHUB_REF_NAME#v}\"", "${{ github.ref_name }}", "template-injection"),
    ] {
        let text = std::fs::read_to_string(folder.join("release.yml")).expect("a workflow");
        assert!(text.contains(was), "{was}");
        let broken = home.path().join(format!("{name}.yml"));
        std::fs::write(&broken, text.replace(was, is)).expect("written");
        let found = findings(&broken).unwrap_or_else(|| panic!("{name} is not found"));
        assert!(found.contains(name), "{found}");
    }
}

tests!(the_workflows_have_the_least_rights_and_pinned_actions);
