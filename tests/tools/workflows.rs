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

/// The jobs of a workflow: their names and their lines.
fn jobs(text: &str) -> Vec<(&str, String)> {
    let mut found: Vec<(&str, String)> = Vec::new();
    for line in text.split_once("\njobs:\n").expect("jobs").1.lines() {
        match line.strip_prefix("  ").and_then(|name| name.strip_suffix(':')).filter(|name| !name.starts_with(' ')) {
            Some(name) => found.push((name, String::new())),
            None if line.trim_start().starts_with('#') => {}
            None => found.last_mut().expect("a job").1.extend([line, "\n"]),
        }
    }
    found
}

fn the_job_that_may_sign_runs_nothing_and_tools_have_a_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file");
    let release = read(".github/workflows/release.yml");
    let jobs = jobs(&release);
    assert_eq!(jobs.iter().map(|job| job.0).collect::<Vec<_>>(), ["test", "build", "attest", "publish"]);
    for (name, lines) in &jobs {
        let may_sign = lines.contains("id-token: write");
        assert_eq!(may_sign, *name == "attest", "{name}");
        assert!(!may_sign || !lines.contains("run:") && !lines.contains("checkout"), "{name}: {lines}");
    }
    let build = &jobs[1].1;
    assert!(
        !build.contains("make test") && !build.contains("make release"),
        "what tests bring is not where it is built"
    );
    let tool = read(".ci/tool.sh");
    assert!(tool.contains("cargo install --locked --quiet \"$1@$version\""), "{tool}");
    let no_version = ["Makefile", ".ci/dist.sh", ".ci/release.sh", ".ci/run", ".ci/tool.sh"].map(read);
    assert_eq!(
        no_version.iter().map(|text| text.matches("cargo install").count()).sum::<usize>(),
        1,
        "tools come by tool.sh"
    );
    let mut unknown = Command::new("sh");
    assert!(!unknown.arg(root.join(".ci/tool.sh")).arg("no-such-tool").output().expect("it runs").status.success());
}

tests!(
    the_workflows_have_the_least_rights_and_pinned_actions,
    the_job_that_may_sign_runs_nothing_and_tools_have_a_version
);
