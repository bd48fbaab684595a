//! What `tree_model` compares after every step: all that has left and all that waits, in the functions' keys and in the reference.

use std::collections::BTreeMap;

use super::flow::audit;
use super::tree_delayed::ANNOUNCED;
use super::tree_model::{Pair, name};
use super::tree_quotas::Windows;
use super::tree_reference::{Left, Node, Place, Tree};
use crate::rig::{Entry, S};

/// Ends are sums of fractions.
const ENDS_OFF: f64 = 1e-9;

impl Pair {
    pub(super) fn scores(&mut self, key: &str) -> Vec<(String, f64)> {
        let key = self.case.key(key);
        self.case.cmd(&["ZRANGE", &key, "0", "-1", "WITHSCORES"])
    }

    /// The bodies of the jobs of a bucket, the next one to leave first: jobs are numbers, and stand at the end of what is stored.
    fn waiting(&mut self, bucket: &str) -> Vec<String> {
        let queue = self.case.queue(bucket);
        let found: Vec<Vec<u8>> = self.case.cmd(&["LRANGE", &queue, "0", "-1"]);
        let body = |job: &Vec<u8>| {
            job.rsplit(|byte| *byte == b'\n').next().map(|body| String::from_utf8_lossy(body).into_owned())
        };
        found.iter().rev().filter_map(body).collect()
    }

    /// The delayed jobs, whose turn is next, and when somebody looks.
    fn compare_delayed(&mut self) {
        let looks: BTreeMap<String, f64> = self.scores("retries").into_iter().collect();
        let key = self.case.key("turns");
        let turns: BTreeMap<String, String> = self.case.cmd(&["HGETALL", &key]);
        for node in self.tree.nodes.clone().into_iter().filter(|node| node.queue.is_some()) {
            let body = |member: &[u8]| member.rsplit(|byte| *byte == b'\n').next().map(<[u8]>::to_vec);
            let key = self.case.key(&format!("delayed:{}", node.id));
            let found: Vec<(Vec<u8>, f64)> = self.case.cmd(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]);
            let found: Vec<_> = found.iter().map(|(member, at)| (*at as u64, body(member).expect("a body"))).collect();
            let later = &node.later;
            let jobs = later.jobs.iter().map(|((at, _), job)| (*at, job.body.clone().into_bytes()));
            let look = later.look.map(|look| if look == ANNOUNCED { f64::INFINITY } else { look as f64 });
            assert!(
                jobs.eq(found.clone())
                    && later.is_queue_next == turns.contains_key(&node.id)
                    && look == looks.get(&node.id).copied(),
                "the delayed jobs of {node:?}: {found:?}, {turns:?}, {looks:?}\n{}",
                self.story.join("\n")
            );
        }
    }

    /// What was used of the windows that have not ended.
    fn compare_quotas(&mut self) {
        let key = self.case.key("windows");
        let stored: BTreeMap<String, String> = self.case.cmd(&["HGETALL", &key]);
        for node in &self.tree.nodes {
            let mut found = Windows::new();
            for window in stored.get(&node.id).into_iter().flat_map(|text| text.split(' ').skip(2)) {
                let figures: Vec<i64> =
                    window.split(['@', ':']).map(|figure| figure.parse().expect("a number")).collect();
                let hours = figures[1] / (3_600 * S as i64);
                found.insert((figures[0] as u64, hours), (figures[2] as u64, figures[3] as u64));
            }
            let mut used = node.windows.clone();
            for windows in [&mut found, &mut used] {
                windows.retain(|_, (ends, _)| *ends > self.now);
            }
            assert_eq!(found, used, "the windows of {}\n{}", node.id, self.story.join("\n"));
        }
    }

    /// The entries of the stream.
    fn compare_left(&mut self) {
        let left: Vec<Left> = self
            .case
            .stream("ready")
            .into_iter()
            .map(|entry| Left {
                bucket: entry.text("bucket"),
                job: entry.text("job"),
                cost: cost_of(&entry),
                charged: entry.fields.get("charged").map_or_else(|| cost_of(&entry), |_| entry.number("charged")),
                due: entry.number("due_us"),
                at: entry.number("at_us"),
                attempt: entry.number("attempt"),
                kept: if entry.fields.contains_key("kept") { entry.number("kept") } else { 0 },
                deadline: entry.fields.contains_key("deadline_us").then(|| entry.number("deadline_us")),
            })
            .collect();
        let undone: Vec<usize> = self.tree.undone().collect();
        for (found, at) in left.iter().zip(undone) {
            if self.tree.without_over.get(&at).is_some_and(|dues| dues.contains(&found.due)) {
                self.tree.left[at].due = found.due;
            }
        }
        let expected: Vec<Left> = self.tree.undone().map(|at| self.tree.left[at].clone()).collect();
        if left != expected {
            let at = left.iter().zip(&expected).take_while(|(a, b)| a == b).count();
            panic!(
                "the {at}th job: {:?} instead of {:?}\n{}\n{:?}",
                left.get(at),
                expected.get(at),
                self.story.join("\n"),
                self.tree.nodes,
            );
        }
    }

    pub(super) fn compare(&mut self) {
        self.tree.settle_emptied(self.now);
        self.compare_left();
        self.compare_delayed();
        self.compare_retries();
        self.compare_slow();
        self.compare_slots();
        self.compare_quotas();
        let expired = self.case.stream("rejected").into_iter().filter(|entry| entry.text("reason") == "expired");
        let expired: Vec<_> = expired.map(|entry| (entry.text("bucket"), entry.text("job"))).collect();
        assert_eq!(expired, self.tree.expired, "expired\n{}", self.story.join("\n"));
        let places = |tree: &Tree, pick: &dyn Fn(&Node) -> Option<u64>| -> BTreeMap<String, u64> {
            tree.nodes.iter().filter_map(|node| Some((node.id.clone(), pick(node)?))).collect()
        };
        let found: BTreeMap<String, u64> =
            self.scores("schedule").into_iter().map(|(id, due)| (id, due as u64)).collect();
        let expected = places(&self.tree, &|node| match node.place {
            Place::Schedule(due) => Some(due),
            _ => None,
        });
        let story = || self.story.join("\n");
        assert_eq!(found, expected, "the schedule\n{}", story());
        let paused: Vec<String> = self.scores("paused").into_iter().map(|(id, _)| id).collect();
        let mut expected: Vec<String> =
            places(&self.tree, &|node| (node.place == Place::Paused).then_some(0)).into_keys().collect();
        expected.sort();
        let sorted = |mut list: Vec<String>| {
            list.sort();
            list
        };
        assert_eq!(sorted(paused), expected, "paused\n{}", self.story.join("\n"));
        for n in 0..self.tree.nodes.len() {
            let node = self.tree.nodes[n].clone();
            if let Some(queue) = &node.queue {
                let waiting = self.waiting(&node.id);
                assert!(
                    queue.iter().map(|job| &job.body).eq(&waiting),
                    "the jobs of {}\n{}",
                    node.id,
                    self.story.join("\n")
                );
                continue;
            }
            let found = self.scores(&format!("wait:{}{{default}}", name(&node.id)));
            let mut expected: Vec<(f64, u64, String)> = self
                .tree
                .nodes
                .iter()
                .filter(|child| child.parent == Some(n))
                .filter_map(|child| match child.place {
                    Place::Share(ends, due) => Some((ends, due, child.id.clone())),
                    _ => None,
                })
                .collect();
            expected.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| (a.1, &a.2).cmp(&(b.1, &b.2))));
            let same = found.len() == expected.len()
                && found.iter().zip(&expected).all(|((member, score), (ends, due, id))| {
                    (score - ends).abs() < ENDS_OFF && *member == format!("{due:016}{id}")
                });
            assert!(same, "who waits for {}: {found:?} instead of {expected:?}\n{}", node.id, self.story.join("\n"));
            let key = self.case.key("budgets");
            let stored: Option<String> = self.case.cmd(&["HGET", &key, &node.id]);
            assert_eq!(
                stored.is_some(),
                node.place != Place::Nowhere,
                "{} has work\n{}",
                node.id,
                self.story.join("\n")
            );
            if let Some(stored) = stored {
                let due: u64 = stored.split(' ').next().and_then(|due| due.parse().ok()).expect("a due");
                // What is over by more than may be made up for is forgotten.
                let least = self.now - self.tree.catch_up(n);
                assert_eq!(
                    due.max(least),
                    node.due.max(least),
                    "the due of {}: {stored}\n{}",
                    node.id,
                    self.story.join("\n")
                );
            }
        }
        audit(&mut self.case);
    }
}

fn cost_of(entry: &Entry) -> u64 {
    if entry.fields.contains_key("cost") { entry.number("cost") } else { 1 }
}
