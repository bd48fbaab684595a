//! The walk: calls that pass every bucket by, page by page, and what is kept of them: the first buckets of each order.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisResult, ToRedisArgs, Value};

use super::top::{By, FlatRow, KEPT, PART, Row};
use crate::model::subject::Subject;
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::library::is_missing_function;
use crate::store::reply::{Reply, named};

/// Where a walk goes on; the default is its beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct At {
    place: String,
    cursor: String,
}

/// A page of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Where it goes on; `None` when it is over.
    pub next: Option<At>,
    /// The time of the server.
    pub now_us: u64,
    /// How many buckets it passed.
    pub passed: u64,
    /// How much of Redis' time the function took.
    pub cost: Duration,
    /// Buckets that may be among the first by depth, by the time until they are empty, or by lateness.
    rows: Vec<Row>,
    /// Buckets that may be among the first by what they rejected.
    rejecting: Vec<Row>,
}

/// The first rows of one order, as far as a walk has come. A name may come twice, for a bucket moves while the walk is under way:
/// what was seen last counts.
#[derive(Debug)]
struct First {
    by: By,
    rows: Vec<Arc<Row>>,
    /// A row with no more than this is not among the first.
    floor: Option<u64>,
}

impl First {
    fn add(&mut self, row: &Arc<Row>) {
        let value = self.by.value(row);
        // One job that may leave at once takes no time, and counts all the same.
        let has_place = if self.by == By::Empty { row.depth > 0 } else { value > 0 };
        if has_place && self.floor.is_none_or(|floor| value > floor) {
            self.rows.push(Arc::clone(row));
        }
        if self.rows.len() >= 2 * KEPT {
            self.settle();
        }
    }

    /// Sort, each name once, and let go of what is not among the first.
    fn settle(&mut self) {
        let (by, mut seen) = (self.by, HashSet::new());
        let mut rows = std::mem::take(&mut self.rows);
        rows.reverse();
        rows.retain(|row| seen.insert(row.bucket.clone()));
        rows.sort_by(|a, b| by.value(b).cmp(&by.value(a)).then_with(|| a.bucket.cmp(&b.bucket)));
        rows.truncate(KEPT);
        self.floor = if rows.len() == KEPT { rows.last().map(|row| by.value(row)) } else { None };
        self.rows = rows;
    }
}

/// The first rows of each order that a walk has found so far, in bounded memory.
#[derive(Debug)]
pub struct Ranking {
    orders: [First; 5],
    began_us: Option<u64>,
    passed: u64,
}

impl Default for Ranking {
    fn default() -> Self {
        let [empty, depth, rejected, late] = By::ALL;
        let orders = [empty, depth, rejected, late, By::Budgets].map(|by| First { by, rows: Vec::new(), floor: None });
        Self { orders, began_us: None, passed: 0 }
    }
}

impl Ranking {
    /// Take in the rows of a page.
    pub fn add(&mut self, page: Page) {
        self.began_us.get_or_insert(page.now_us);
        self.passed += page.passed;
        for row in page.rows {
            let (is_budget, row) = (Subject::of_stored(&row.bucket).is_budget, Arc::new(row));
            let takes = |by| if is_budget { by == By::Budgets } else { by != By::Rejected && by != By::Budgets };
            for first in self.orders.iter_mut().filter(|first| takes(first.by)) {
                first.add(&row);
            }
        }
        for row in page.rejecting {
            let row = Arc::new(row);
            for first in self.orders.iter_mut().filter(|first| first.by == By::Rejected) {
                first.add(&row);
            }
        }
    }

    /// How many buckets were passed.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Whether any bucket has rejected something lately.
    pub fn has_rejecting(&self) -> bool {
        self.orders.iter().any(|first| first.by == By::Rejected && !first.rows.is_empty())
    }

    /// The value that a row must exceed to be among the first; −1 while there is room.
    fn floor(&self, by: By) -> i64 {
        let first = self.orders.iter().find(|first| first.by == by).and_then(|first| first.floor);
        let least = if by == By::Empty { -1 } else { 0 };
        first.and_then(|floor| i64::try_from(floor).ok()).unwrap_or(least)
    }
}

impl Store {
    /// A page of a walk, of about `most` buckets.
    pub async fn walk(&mut self, at: &At, most: u64, so_far: &Ranking) -> Result<Page, StoreError> {
        let floors = [By::Depth, By::Empty, By::Late, By::Rejected, By::Budgets].map(|by| so_far.floor(by));
        let (reply, cost) = self.timed("drip__walk", &("", &at.place, &at.cursor, most, &floors)).await?;
        reply.decode_with(|parts| page(parts, cost))
    }

    /// Keep the ranking of a walk that is over, for `Partitions::top`, in place of the one before. Replies what it cost.
    pub async fn keep_ranking(&mut self, mut ranking: Ranking, took: Duration) -> Result<Duration, StoreError> {
        let mut args = vec![String::new(), ranking.began_us.unwrap_or_default().to_string()];
        args.extend([took.as_micros().to_string(), ranking.passed.to_string()]);
        for first in &mut ranking.orders {
            first.settle();
            for part in first.rows.chunks(PART) {
                let rows: Vec<&Row> = part.iter().map(AsRef::as_ref).collect();
                args.extend([first.by.to_string(), serde_json::to_string(&rows).expect("rows are text and numbers")]);
            }
        }
        self.timed("drip__rank", &args).await.map(|(_, cost)| cost)
    }

    /// Call a function, between two looks at the server's clock: no other client's call comes between commands that arrive
    /// together. Inside a function the clock stands still, from Redis 7.2 on.
    async fn timed(&mut self, name: &'static str, args: &impl ToRedisArgs) -> Result<(Reply, Duration), StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("TIME").cmd("FCALL").arg(name).arg(1).arg(self.keys().policy()).arg(args).cmd("TIME");
        let replies: Vec<RedisResult<Value>> = self.call_pipeline(name, pipeline.ignore_errors()).await?;
        let Ok([before, reply, after]) = <[_; 3]>::try_from(replies) else {
            return Err(Reply { call: name, value: Value::Nil }.unexpected());
        };
        let cost = micros(after).zip(micros(before)).map_or(Duration::ZERO, |(after, before)| {
            Duration::from_micros(after.saturating_sub(before)) // the clock may step back
        });
        match reply.map_err(|why| StoreError::of_call(self.redacted(), name, &why)) {
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => {
                Ok((self.call_function(name, &[self.keys().policy()], args).await?, cost))
            }
            value => Ok((Reply { call: name, value: value? }, cost)),
        }
    }
}

/// The reply of `TIME` in microseconds.
fn micros(reply: RedisResult<Value>) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(reply.ok()?).ok()?;
    Some(seconds * 1_000_000 + micros)
}

/// The place and the cursor at which the walk goes on, the time, how many buckets it passed, and the rows of both kinds.
type PageReply = (String, String, u64, u64, Vec<FlatRow>, Vec<FlatRow>);

fn page((place, cursor, now_us, passed, rows, rejecting): PageReply, cost: Duration) -> Option<Page> {
    let next = (!place.is_empty()).then_some(At { place, cursor });
    let read = |rows: Vec<FlatRow>| rows.into_iter().map(named).collect::<Option<_>>();
    Some(Page { next, now_us, passed, cost, rows: read(rows)?, rejecting: read(rejecting)? })
}

#[cfg(test)]
mod tests {
    use super::super::top::Place;
    use super::*;

    fn row(bucket: &str, depth: u64) -> Row {
        Row {
            bucket: bucket.to_owned(),
            place: Place::Due,
            route: "default".to_owned(),
            depth,
            capacity: 1_000,
            count: 10,
            period_us: 1_000_000,
            due_in_us: 0,
            empty_in_ms: depth.saturating_sub(1) * 100,
            late_us: 0,
            rejected: 0,
        }
    }

    fn page_of(rows: Vec<Row>) -> Page {
        Page { next: None, now_us: 7, passed: rows.len() as u64, cost: Duration::ZERO, rows, rejecting: Vec::new() }
    }

    fn names(ranking: &mut Ranking, by: By) -> Vec<String> {
        let first = ranking.orders.iter_mut().find(|first| first.by == by).expect("one of all");
        first.settle();
        first.rows.iter().map(|row| row.bucket.clone()).collect()
    }

    #[test]
    fn the_first_thousand_of_a_hundred_thousand_are_kept_in_bounded_memory() {
        const ALL: u64 = 100_000;
        let mut ranking = Ranking::default();
        // Every depth once, in an order that is neither up nor down.
        let rows: Vec<Row> = (0..ALL).map(|n| n * 77_773 % ALL).map(|n| row(&format!("b{n:06}"), n + 1)).collect();
        for part in rows.chunks(500) {
            ranking.add(page_of(part.to_vec()));
            assert!(ranking.orders.iter().all(|first| first.rows.len() < 2 * KEPT), "bounded");
        }
        let expected: Vec<String> = (0..1_000).map(|n| format!("b{:06}", ALL - 1 - n)).collect();
        assert_eq!(names(&mut ranking, By::Depth), expected);
        assert_eq!(names(&mut ranking, By::Empty), expected);
        assert_eq!(ranking.floor(By::Depth), 99_001, "what is no deeper need not be sent");
        assert_eq!((ranking.floor(By::Late), ranking.passed()), (0, ALL));
    }

    #[test]
    fn a_bucket_that_moved_and_was_met_twice_counts_once_as_it_was_met_last() {
        let mut ranking = Ranking::default();
        ranking.add(page_of(vec![row("moved", 50), row("other", 20)]));
        ranking.add(page_of(vec![row("moved", 10)]));
        assert_eq!(names(&mut ranking, By::Depth), ["other", "moved"]);
    }

    #[test]
    fn an_empty_bucket_stands_in_no_order_and_one_job_that_may_leave_now_in_two() {
        let mut ranking = Ranking::default();
        ranking.add(page_of(vec![row("none", 0), row("one", 1)]));
        assert_eq!(names(&mut ranking, By::Depth), ["one"]);
        assert_eq!(names(&mut ranking, By::Empty), ["one"]);
        assert_eq!(names(&mut ranking, By::Late), [""; 0]);
        assert_eq!(names(&mut ranking, By::Rejected), [""; 0]);
    }
}
