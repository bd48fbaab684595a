//! Jobs as the model knows them: where they wait, and after they have left. What Redis holds of one is text, and is compared as such;
//! `@` stands for the mark of submitted jobs.

/// What was asked for with a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Options {
    pub(super) id: String,
    pub(super) cost: u64,
    /// Microseconds since the epoch.
    pub(super) deadline: Option<u64>,
    /// Known as long as the job has not left for the first time.
    pub(super) accepted: u64,
    pub(super) headers: Vec<(String, String)>,
}

impl Options {
    /// Of a job that has an identity and nothing else.
    pub(super) fn bare(id: String) -> Self {
        Self { id, cost: 1, deadline: None, accepted: 0, headers: Vec::new() }
    }

    pub(super) fn without_deadline(self) -> Self {
        Self { deadline: None, ..self }
    }

    /// As they are stored in front of the body.
    fn text(&self) -> String {
        let mut text = format!("{} {} {} {}\n", self.cost, self.deadline.unwrap_or(0), self.accepted, self.id);
        for (name, value) in &self.headers {
            text += &format!("{name}:{value}\n");
        }
        text + "\n"
    }
}

/// A job that waits for the first time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Job {
    pub(super) body: String,
    /// None: it was pushed without any.
    pub(super) options: Option<Options>,
}

impl Job {
    pub(super) fn plain(body: &str) -> Self {
        Self { body: body.into(), options: None }
    }

    /// One element of the list, or of the set of delayed jobs.
    pub(super) fn stored(&self) -> String {
        let text = |options: &Options| format!("@1 {}{}", options.text(), self.body);
        self.options.as_ref().map_or_else(|| self.body.clone(), text)
    }
}

/// What is known of a submitted job that waits, by its id.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    /// q, d or r: in the queue, delayed, backing off; the same in capitals: and cancelled.
    pub(super) state: char,
    /// Since when it waits there.
    pub(super) since: u64,
    pub(super) eta: u64,
    pub(super) attempt: u64,
    /// 0: it is not remembered.
    pub(super) accepted: u64,
    /// 0: none. One that backs off has none here.
    pub(super) deadline: u64,
    /// Of a delayed job its time, of one that backs off its last entry.
    pub(super) place: String,
}

impl Line {
    /// Whether it is too late for its job to leave: it is dropped at its turn, and its id is free.
    pub(super) fn is_late(&self, now: u64) -> bool {
        self.deadline > 0 && self.deadline < now
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.state.is_ascii_uppercase()
    }

    pub(super) fn text(&self) -> String {
        let Self { state, since, eta, attempt, accepted, deadline, place } = self;
        format!("{state} {since} {eta} {attempt} {accepted} {deadline} {place}")
    }

    /// What tells its job from others with the same id.
    pub(super) fn key(&self) -> String {
        let state = self.state.to_ascii_lowercase();
        if state == 'r' { format!("r{}", self.place) } else { format!("{state}{}", self.since) }
    }
}

/// A job that backs off. They leave in the order of the ends; Redis sorts equal ones by what is stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Retry {
    pub(super) ends: u64,
    pub(super) member: String,
    pub(super) delay: u64,
    pub(super) attempt: u64,
    pub(super) kept: u64,
    pub(super) options: Options,
    pub(super) body: String,
    /// Its last one.
    pub(super) entry: String,
}

impl Retry {
    /// `from` is the entry and the route that it comes from.
    pub(super) fn new(ends: u64, delay: u64, from: &str, tries: (u64, u64), options: Options, body: String) -> Self {
        let (attempt, kept) = tries;
        let entry = from.split(' ').next().expect("the entry").to_owned();
        let Options { id, cost, deadline, headers, .. } = &options;
        let member = if *cost == 1 && deadline.is_none() && headers.is_empty() {
            format!("2 {from} {delay} {attempt} {kept} {id} {body}")
        } else {
            format!("4 - {from} {delay} {attempt} {kept} {}{body}", options.text())
        };
        Self { ends, member, delay, attempt, kept, options, body, entry }
    }

    /// One that the other side turned away: those of one slow-down leave in the order of their first dispatch, which the entry tells, or the
    /// identity where that is an entry.
    pub(super) fn first(
        ends: u64,
        (entry, route): (&str, &str),
        tries: (u64, u64),
        options: Options,
        body: String,
    ) -> Self {
        let halves =
            |id: &str| id.split_once('-').and_then(|(ms, n)| Some((ms.parse::<u64>().ok()?, n.parse::<u64>().ok()?)));
        let (ms, n) = halves(&options.id).or_else(|| halves(entry)).expect("the id of an entry");
        let ((attempt, kept), text) = (tries, options.text());
        let member = format!("4 {ms:020}-{n:020} {entry} {route} 0 {attempt} {kept} {text}{body}");
        Self { ends, member, delay: 0, attempt, kept, options, body, entry: entry.into() }
    }
}

/// An entry of a ready stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ready {
    pub(super) id: String,
    pub(super) route: String,
    pub(super) bucket: String,
    pub(super) job: String,
    pub(super) attempt: u64,
    pub(super) kept: u64,
    pub(super) due: u64,
    pub(super) at: u64,
    pub(super) lease_ms: u64,
    /// The identity, where it is not the entry's own.
    pub(super) first: Option<String>,
    pub(super) cost: u64,
    /// What its bucket was charged.
    pub(super) charged: u64,
    pub(super) deadline: Option<u64>,
    pub(super) headers: Vec<(String, String)>,
    /// One of the slots of its bucket: which it has from its dispatch on, or never.
    pub(super) holds: bool,
    pub(super) taken_ms: Option<u64>,
}

impl Ready {
    pub(super) fn options(&self) -> Options {
        let id = self.first.clone().unwrap_or(self.id.clone());
        let (cost, deadline, headers) = (self.cost, self.deadline, self.headers.clone());
        Options { id, cost, deadline, accepted: 0, headers }
    }
}

/// An entry of the dead stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dead {
    pub(super) bucket: String,
    pub(super) job: String,
    pub(super) attempt: u64,
    pub(super) reason: String,
    /// With its identity.
    pub(super) options: Options,
}
