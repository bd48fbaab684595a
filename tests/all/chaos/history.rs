//! What happened: each push with its answer, each job that left with its entry, and how each was finished. All times are microseconds
//! since the epoch on the clock of whoever notes them. The server has the same one, except where it is the server's clock that goes wrong.

/// A standstill of the server that is not noted: what is longer than a call and a moment's sleep beside it is.
pub const UNNOTICED_US: u64 = 3_000;

/// Between which moments a server may have stood still, from when each question was asked and answered. That it was asked before the answer is
/// all that is known: a server works on a question, then on a call that takes long, and sends both answers after that.
pub fn stalls(questions: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let between = questions.windows(2).map(|pair| (pair[0].0, pair[1].1));
    between.filter(|(from, to)| *to > from + UNNOTICED_US).collect()
}

/// What a producer was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Accepted,
    /// There was no room, or it was refused in a way that says that nothing was done.
    Rejected,
    /// The connection was lost, or Redis refused: it may have gone in or not.
    Unknown,
}

/// One job that a producer pushed.
#[derive(Debug, Clone)]
pub struct Push {
    /// The job; no other push has it.
    pub job: String,
    pub bucket: usize,
    pub sent_us: u64,
    pub answered_us: u64,
    pub answer: Answer,
    /// Which primary answered, by its number: each promotion makes another one, and so does a slot that goes elsewhere.
    pub primary: usize,
}

/// An entry of the ready stream, as a worker got it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The number of the entry: no other one has it, and it grows in the order of the stream.
    pub at: u64,
    /// When it left its bucket, at the latest: as its id says, in whole milliseconds, rounded down.
    pub left_us: u64,
    /// When it left at the earliest: the same, except where ids tell no time.
    pub early_us: u64,
    pub job: String,
    pub bucket: usize,
    /// 1: the first.
    pub attempt: u64,
    /// Which primary it was seen on first.
    pub primary: usize,
    /// It was seen again on a later primary.
    pub is_kept: bool,
}

/// What a worker did with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It died, or saw another primary than the one that had given it.
    Dropped,
    /// It said that the job had failed.
    Failed,
    /// It acknowledged it, and may have been answered or not.
    Acked,
}

/// A worker had an entry in its hands.
#[derive(Debug, Clone)]
pub struct Held {
    /// Which one, by its number.
    pub at: u64,
    /// When it asked for jobs and when it was answered: it was given this one in between.
    pub taken_us: (u64, u64),
    pub end: End,
    /// When it began to give it back, if it did: nobody else can have had it before.
    pub given_us: Option<u64>,
    /// It was acknowledged, and the answer said so: it must not leave again.
    pub acked_us: Option<u64>,
    /// Which primary it was given back to.
    pub primary: usize,
}

/// What is promised of a bucket, or of a budget above it.
#[derive(Debug, Clone)]
pub struct Node {
    pub name: String,
    /// So many in a period.
    pub count: u64,
    pub period_us: u64,
    pub catch_up_us: u64,
    /// How many may be in flight.
    pub slots: Option<usize>,
    /// The number of the node above it.
    pub parent: Option<usize>,
}

/// What happened in one partition, to its own buckets and in its own streams. Where nothing is cut that is all.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub nodes: Vec<Node>,
    pub pushes: Vec<Push>,
    /// In the order of the stream.
    pub entries: Vec<Entry>,
    pub held: Vec<Held>,
    /// How long a worker may keep an entry before it is taken back.
    pub lease_us: u64,
    /// How old undelivered jobs may become before their buckets are held.
    pub ready_window_us: u64,
    /// Between these moments the server may have stood still, in their order; they may overlap. What left meanwhile may have been decided at the beginning,
    /// and its id made at the end.
    pub stalls: Vec<(u64, u64)>,
    /// At these moments all state was lost, and what was stored with it: nothing is promised from one side of such a moment to the other.
    pub lost_all_us: Vec<u64>,
    /// Between these moments the server's clock was stepped: whatever waits or is lent out for a time may be over then, or begin anew.
    pub steps_us: Vec<(u64, u64)>,
    /// For each primary: if another one took its place, that has all that happened up to this moment. It may lack anything later, and nothing
    /// is promised of that.
    pub kept_until_us: Vec<u64>,
}

impl History {
    /// Whether something that a primary did is known to its successors.
    pub fn is_kept(&self, primary: usize, done_us: u64) -> bool {
        self.kept_until_us.get(primary).is_none_or(|until| done_us <= *until)
    }
}
