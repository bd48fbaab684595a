//! How everybody on the stage speaks to the server: a connection that is made anew whenever it was lost, to whoever is the primary then.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection, FromRedisValue, RedisError, RedisResult};

use super::primaries::Primaries;
use super::server::connect;

/// How long one of them waits before it connects again.
pub const PAUSE: Duration = Duration::from_millis(20);

/// How often one of them looks whether the primary is still the same.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How they find the server.
pub enum Way {
    Port(u16),
    /// There are several, one after the other.
    Primaries(Primaries),
}

impl Way {
    /// A connection, and the number of the primary that it is to.
    pub fn connect(&self) -> RedisResult<(Connection, usize)> {
        match self {
            Self::Port(port) => Ok((connect(*port)?, 0)),
            Self::Primaries(primaries) => primaries.connect(),
        }
    }

    /// Ask where an answer of `ASK` points to, as clients of a cluster do.
    fn follow<T: FromRedisValue>(&self, why: &RedisError, command: &Cmd) -> RedisResult<T> {
        let Self::Primaries(primaries) = self else { return Err(why.clone()) };
        let (address, _) = why.redirect_node().expect("ASK says where");
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let mut other = connect(port)?;
        primaries.asked.fetch_add(1, Ordering::Relaxed);
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").ignore().add_command(command.clone());
        pipeline.query(&mut other).map(|(answer,)| answer)
    }

    /// How often somebody did that.
    pub fn asked(&self) -> usize {
        match self {
            Self::Port(_) => 0,
            Self::Primaries(primaries) => primaries.asked.load(Ordering::Relaxed),
        }
    }
}

/// A connection, and the number of the primary that it is to.
pub struct Line<'a> {
    way: &'a Way,
    connection: Option<Connection>,
    pub primary: usize,
    /// When it was looked last whether that is the right one.
    looked: Instant,
}

impl<'a> Line<'a> {
    pub fn new(way: &'a Way) -> Self {
        Self { way, connection: None, primary: 0, looked: Instant::now() }
    }

    /// Whoever comes next is another one, with a connection of its own.
    pub fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Connect, where there is no connection to the right primary.
    pub fn reach(&mut self) {
        if let Way::Primaries(primaries) = self.way
            && self.connection.is_some()
            && self.looked.elapsed() > LOOK_AGAIN
        {
            self.looked = Instant::now();
            if !primaries.is_still(self.primary) {
                self.connection = None;
            }
        }
        if self.connection.is_none()
            && let Ok((connection, primary)) = self.way.connect()
        {
            (self.connection, self.primary) = (Some(connection), primary);
        }
    }

    /// Whether nothing that a primary gave out can be given back now: nobody answers, or it has a successor, which may know another entry by
    /// the same id.
    pub fn has_lost(&self, primary: usize) -> bool {
        let Way::Primaries(primaries) = self.way else { return false };
        self.connection.is_none() || primaries.succeeds(self.primary, primary)
    }

    pub fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        self.reach();
        self.send(command)
    }

    /// The same to the primary that was reached.
    pub fn send<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        let Some(connection) = self.connection.as_mut() else {
            sleep(PAUSE);
            return Err((redis::ErrorKind::Io, "no connection").into());
        };
        let answer = match command.query(connection) {
            Err(why) if why.code() == Some("ASK") => self.way.follow(&why, command),
            answer => answer,
        };
        // What the server refused leaves the connection as it was, if it is still the right server; anything else may have left half an
        // answer in it.
        let is_wrong = |code| ["READONLY", "MOVED"].contains(&code);
        if let Err(why) = &answer
            && (why.is_io_error() || why.is_timeout() || why.code().is_none_or(is_wrong))
        {
            self.connection = None;
        }
        answer
    }
}

/// Whether a cluster refused something that did nothing and can be asked again: the slot is elsewhere or on the move, or has nobody.
pub fn is_for_later(why: &RedisError) -> bool {
    why.code().is_some_and(|code| ["MOVED", "TRYAGAIN", "CLUSTERDOWN"].contains(&code))
}
