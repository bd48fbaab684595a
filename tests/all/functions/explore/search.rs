//! Breadth first through the states of a world.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::super::tree_model::Pair;
use super::digest;
use super::world::{self, Event, World};
use crate::rig::{Case, Server, load_source};

pub(super) struct Search {
    world: &'static World,
    server: Server,
    case: Option<Case>,
    record: String,
    seen: HashSet<u64>,
    /// States to go on from, by the events that lead there.
    open: VecDeque<Vec<Event>>,
    spaces: u64,
    pub(super) transitions: u64,
    depth: usize,
}

impl Search {
    pub(super) fn new(world: &'static World, source: &str) -> Self {
        let server = Server::start(&[]);
        load_source(&mut server.connect(), source);
        let record = world.record();
        Self {
            world,
            server,
            case: None,
            record,
            seen: HashSet::new(),
            open: VecDeque::new(),
            spaces: 0,
            transitions: 0,
            depth: 0,
        }
    }

    pub(super) fn figures(&self) -> String {
        let Self { seen, transitions, depth, open, .. } = self;
        format!(
            "{} states, {transitions} transitions, depth {depth}, {} states not gone on from",
            seen.len(),
            open.len()
        )
    }

    /// Go on until the time is over, or all is seen. Replies a shortest sequence that leads to something wrong, and what.
    pub(super) fn run(&mut self, time: Duration) -> Option<String> {
        let began = Instant::now();
        self.open.push_back(Vec::new());
        while let Some(path) = self.open.pop_front() {
            if began.elapsed() >= time {
                self.open.push_front(path);
                return None;
            }
            self.depth = path.len() + 1;
            let events = match self.replay(&path) {
                Ok(mut pair) => {
                    let events = world::events(&pair);
                    self.seen.insert(digest::take(&mut pair));
                    self.ends(pair);
                    events
                }
                Err(why) => return Some(why),
            };
            for event in events {
                let mut sequence = path.clone();
                sequence.push(event);
                match self.replay(&sequence) {
                    Ok(mut pair) => {
                        self.transitions += 1;
                        if self.seen.insert(digest::take(&mut pair)) {
                            self.open.push_back(sequence);
                        }
                        self.ends(pair);
                    }
                    Err(why) => return Some(why),
                }
            }
        }
        None
    }

    /// The world after these events, where the last one is compared: those before it were when it was their turn.
    pub(super) fn replay(&mut self, path: &[Event]) -> Result<Pair, String> {
        self.spaces += 1;
        let (world, record) = (self.world, &self.record);
        let mut case = self.case.take().unwrap_or_else(|| Case { redis: self.server.connect(), prefix: String::new() });
        case.prefix = format!("x{}", self.spaces);
        catch_unwind(AssertUnwindSafe(|| {
            let mut pair = world.begin(case, record);
            for event in path {
                world.apply(&mut pair, *event);
            }
            pair.compare();
            pair
        }))
        .map_err(|why| {
            let why = why
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| why.downcast_ref::<&str>().map(|why| (*why).to_owned()));
            let mut told = String::new();
            for (n, event) in path.iter().enumerate() {
                write!(told, "{}{event}", if n == 0 { "" } else { ", " }).expect("a text");
            }
            format!("after {} events, {told}\n{}", path.len(), why.unwrap_or_default())
        })
    }

    /// Nothing of a space is left.
    fn ends(&mut self, mut pair: Pair) {
        let _: redis::Value = pair.case.cmd(&["FLUSHALL"]);
        self.case = Some(pair.case);
    }
}
