//! Queues as a scan finds them: which of their buckets are not scheduled, and how many jobs wait there. The loops look so for pushes that
//! no report named.

use std::sync::Arc;

use futures_util::future::try_join_all;
use redis::{FromRedisValue, RedisResult, Value};

use crate::model::bucket::BucketName;
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::keys::partition::QueueKey;
use crate::store::partitions::primary::Primary;
use crate::store::reply::Reply;

/// The queues of a page of a scan.
pub struct Sorted {
    /// Queues of buckets, by partition.
    pub by_partition: Vec<(Store, Vec<Vec<u8>>)>,
    /// Queues of no bucket, or of one that lives in another partition.
    pub alone: Vec<Vec<u8>>,
}

/// How things stand with a queue that a scan found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Whether its bucket is scheduled, or paused.
    pub scheduled: bool,
    /// How many jobs wait; `None` where it is no list.
    pub length: Option<u64>,
}

/// A page of a scan over the queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// Where the scan goes on; `None` when it is over.
    pub next: Option<u64>,
    /// The keys of the queues found.
    pub queues: Vec<Vec<u8>>,
}

/// In how many places a bucket with work waits that no scan needs to look at: the schedule, and the paused ones.
const PLACES: usize = 2;

/// Of so many queues, whether the bucket of each stands in one of the places asked for.
fn stands<E>(replies: &[Result<Value, E>], queues: usize) -> Vec<bool> {
    let mut stands = vec![false; queues];
    for reply in replies.iter().take(PLACES) {
        let Ok(Value::Array(wake_pacer)) = reply else { continue };
        for (stands, due) in stands.iter_mut().zip(wake_pacer) {
            *stands |= *due != Value::Nil;
        }
    }
    stands
}

/// The number in a reply to `LLEN`; `None`: the key is no list.
fn length_in(reply: &RedisResult<Value>) -> Option<u64> {
    reply.as_ref().ok().and_then(|length| u64::from_redis_value_ref(length).ok())
}

impl Store {
    /// A page of a scan over every key, of which those that match a pattern are replied.
    async fn scan_queues(&mut self, cursor: u64, pattern: &str) -> Result<Scanned, StoreError> {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1_000);
        let (next, queues): (u64, Vec<Vec<u8>>) = self.read("SCAN", &command).await?;
        Ok(Scanned { next: (next != 0).then_some(next), queues })
    }

    /// A number that has grown when something may happen earlier than the daemons know; for those that are not told.
    pub async fn wakes(&mut self) -> Result<u64, StoreError> {
        let wakes: Option<u64> = self.read("GET", redis::cmd("GET").arg(self.keys().wake())).await?;
        Ok(wakes.unwrap_or(0))
    }

    /// Leave out the queues whose buckets wait for their due or are paused. Sends two commands at most, and none without queues.
    pub async fn unscheduled(&mut self, queues: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StoreError> {
        let places = [self.keys().schedule(), self.keys().paused()];
        self.in_none_of(&places.map(|place| ("ZMSCORE", place)), queues).await
    }

    /// Leave out the buckets that have work and a state: those that wait for their due, a slot, a budget or a route, are paused, or have
    /// no policy that holds. Of the others nobody knows that they have work.
    pub async fn without_state(&mut self, buckets: &[Arc<str>]) -> Result<Vec<Arc<str>>, StoreError> {
        let queues = buckets.iter().map(|name| format!("{}{name}", self.keys().queues()).into_bytes()).collect();
        let keys = self.keys();
        let places = [
            ("ZMSCORE", keys.schedule()),
            ("ZMSCORE", keys.paused()),
            ("ZMSCORE", keys.full()),
            ("ZMSCORE", keys.refused()),
            ("HMGET", keys.waiting()),
        ];
        let left = self.in_none_of(&places, queues).await?;
        Ok(left.iter().filter_map(|key| self.bucket_of(key)).collect())
    }

    /// Leave out the queues whose buckets stand in some places, each with the command that asks for many at once.
    async fn in_none_of(
        &mut self,
        places: &[(&'static str, String)],
        mut queues: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        for (command, place) in places {
            if queues.is_empty() {
                break;
            }
            let asked = self.call(command, &self.ask_place(command, place, &queues)).await.map(|reply| reply.value);
            if let Err(why) = &asked
                && why.code().is_none()
            {
                return asked.map(|_| queues); // a key of the wrong type is no reason not to look
            }
            let stands = stands(&[asked], queues.len());
            queues = queues.into_iter().zip(stands).filter(|(_, stands)| !stands).map(|(queue, _)| queue).collect();
        }
        Ok(queues)
    }

    /// How many jobs wait in some buckets, in their order; 0 where a queue is no list.
    pub async fn lengths(&mut self, buckets: &[Arc<str>]) -> Result<Vec<u64>, StoreError> {
        if buckets.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for name in buckets {
            pipeline.cmd("LLEN").arg(format!("{}{name}", self.keys().queues()));
        }
        pipeline.ignore_errors();
        let replies: Vec<RedisResult<Value>> = self.call_pipeline("LLEN", &pipeline).await?;
        Ok(replies.iter().map(|length| length_in(length).unwrap_or(0)).collect())
    }

    /// Ask which of the buckets of some queues stand in a place.
    fn ask_place(&self, command: &str, place: &str, queues: &[Vec<u8>]) -> redis::Cmd {
        let mut command = redis::cmd(command);
        command.arg(place);
        for queue in queues {
            command.arg(queue.strip_prefix(self.keys().queues().as_bytes()).unwrap_or_default());
        }
        command
    }

    /// How things stand with some queues, in their order. One round trip, and none when there are no queues.
    pub async fn standing(&mut self, queues: &[Vec<u8>]) -> Result<Vec<Standing>, StoreError> {
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for place in [self.keys().schedule(), self.keys().paused()] {
            pipeline.add_command(self.ask_place("ZMSCORE", &place, queues));
        }
        for queue in queues {
            pipeline.cmd("LLEN").arg(queue);
        }
        pipeline.ignore_errors(); // of a queue that is no list
        let replies: Vec<RedisResult<Value>> = self.call_pipeline("LLEN", &pipeline).await?;
        let (places, lengths) =
            replies.split_at_checked(PLACES).ok_or_else(|| Reply { call: "LLEN", value: Value::Nil }.unexpected())?;
        let standing = stands(places, queues.len())
            .into_iter()
            .zip(lengths)
            .map(|(scheduled, length)| Standing { scheduled, length: length_in(length) });
        Ok(standing.collect())
    }

    /// The bucket whose queue a key is; `None` when its name is none.
    pub fn bucket_of(&self, key: &[u8]) -> Option<Arc<str>> {
        let name = key.strip_prefix(self.keys().queues().as_bytes())?;
        BucketName::parse(name).ok().map(|name| name.as_str().into())
    }
}

impl Primary {
    /// A page of a scan over every key, of which those of queues are replied, of whatever partition.
    pub async fn scan_queues(&mut self, cursor: u64) -> Result<Scanned, StoreError> {
        let pattern = self.layout.queue_pattern();
        self.any.scan_queues(cursor, &pattern).await
    }

    /// For each partition a number that has grown when something may happen there earlier than the daemons know.
    pub async fn wakes(&mut self) -> Result<Vec<u64>, StoreError> {
        let wakes = async |mut store: Store| match store.wakes().await {
            Err(why) if why.is_retryable() => Ok(0), // its pacer asks again and again
            wakes => wakes,
        };
        try_join_all(self.each().map(wakes)).await
    }

    /// The queues of a page by their partition. Those of a partition that is on its way from or to another server are left out.
    pub fn sorted(&self, queues: Vec<Vec<u8>>) -> Sorted {
        let (mut lists, mut alone) = (vec![Vec::new(); usize::from(self.layout.partitioning().partitions)], Vec::new());
        for key in queues {
            match self.layout.read_queue(&key) {
                QueueKey::Of(number, _) => lists[usize::from(number)].push(key),
                QueueKey::Misplaced { .. } | QueueKey::NoBucket(_) => alone.push(key),
            }
        }
        let of = |store: Store| {
            let queues = std::mem::take(&mut lists[usize::from(store.keys().number())]);
            (!queues.is_empty()).then_some((store, queues))
        };
        Sorted { by_partition: self.each().filter_map(of).collect(), alone }
    }

    /// Leave out the queues whose buckets wait for their due or are paused. Queues that cannot be asked about stay.
    pub async fn unscheduled(&mut self, queues: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StoreError> {
        let Sorted { by_partition, alone: mut found } = self.sorted(queues);
        for (mut store, queues) in by_partition {
            match store.unscheduled(queues.clone()).await {
                Err(why) if why.is_retryable() => found.extend(queues),
                unscheduled => found.extend(unscheduled?),
            }
        }
        Ok(found)
    }

    /// How things stand with some queues: each with what is known of it. One that is left alone is no news.
    pub async fn standing(&mut self, queues: Vec<Vec<u8>>) -> Result<Vec<(Vec<u8>, Standing)>, StoreError> {
        let nothing = Standing { scheduled: true, length: None };
        let Sorted { by_partition, alone } = self.sorted(queues);
        let mut found: Vec<_> = alone.into_iter().map(|key| (key, nothing)).collect();
        for (mut store, queues) in by_partition {
            match store.standing(&queues).await {
                Err(why) if why.is_retryable() => {}
                standing => found.extend(queues.into_iter().zip(standing?)),
            }
        }
        Ok(found)
    }
}
