//! cluster: what partitions and a Redis Cluster cost, and what they carry where all its primaries share the cores of this machine: 30,000
//! buckets due at once in sixteen partitions, on one Redis and on clusters of one to three primaries, beside one Redis without partitions;
//! and how late the jobs of two primaries leave while the third is killed.

use std::io;
use std::time::Duration;

use dripd::model::bucket::BucketName;
use dripd::model::partitioning::{self, Partitioning};
use dripd::model::route::Route;
use dripd::store::Layout;

use super::drain::{dispatch_times, rate_of};
use super::lab::{Daemon, Server, free_port, spent, wait_for};
use super::measure::{Costs, PAIRS, Pairs, Times};
use super::pace::now_us;
use super::report::{Bound, Report, Row};
use super::taken::{Dispatch, lateness};
use super::wire::{Load, Wire, parts};
use super::{JOB, SLOW};

const BUCKETS: usize = 30_000;
const PARTITIONS: u8 = 16;
const SLOTS: u16 = 16_384;

/// Of each partition one bucket drips while a primary is killed; so long before, and after.
const STEADY: &str = "[defaults]\nrate = \"20/s\"\ncapacity = 10000\n";
const STEADY_JOBS: usize = 1_000;
const WATCHED: Duration = Duration::from_secs(10);

/// Servers, and how a system lies on them.
struct System {
    servers: Vec<Server>,
    layout: Layout,
    /// Which of the servers has each partition.
    homes: Vec<usize>,
    is_cluster: bool,
}

/// The range of slots that each of some primaries has, so that all have as many partitions; and which of them has each partition.
fn dealt(primaries: usize) -> (Vec<(u16, u16)>, Vec<usize>) {
    let slot_of = |number: u8| partitioning::key_slot(number.to_string().as_bytes());
    let mut numbers: Vec<u8> = (0..PARTITIONS).collect();
    numbers.sort_by_key(|number| slot_of(*number));
    let mut homes = vec![0; numbers.len()];
    let mut firsts = vec![SLOTS; primaries];
    for (place, number) in numbers.iter().enumerate() {
        let home = place * primaries / numbers.len();
        homes[usize::from(*number)] = home;
        firsts[home] = firsts[home].min(slot_of(*number));
    }
    firsts[0] = 0;
    let ends = firsts[1..].iter().copied().chain([SLOTS]).map(|next| next - 1);
    (firsts.iter().copied().zip(ends).collect(), homes)
}

impl System {
    fn one(partitions: u8) -> io::Result<Self> {
        let layout = Layout::new("drip", Partitioning { partitions, by: 0 });
        let homes = vec![0; usize::from(partitions)];
        Ok(Self { servers: vec![Server::start()?], layout, homes, is_cluster: false })
    }

    /// A server that can be a node of a cluster, and the port of its bus. The slots of a primary that is away concern nobody else.
    fn node() -> io::Result<(Server, String)> {
        let bus = free_port()?.to_string();
        let options = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-require-full-coverage", "no"];
        let more = ["--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"];
        Ok((Server::start_with(&[&options[..], &more].concat())?, bus))
    }

    /// Primaries without replicas, each with one range of slots, and as many partitions as the others.
    fn cluster(primaries: usize) -> io::Result<Self> {
        let nodes = (0..primaries).map(|_| Self::node()).collect::<io::Result<Vec<_>>>()?;
        let (servers, buses): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let layout = Layout::new("drip", Partitioning { partitions: PARTITIONS, by: 0 });
        let (ranges, homes) = dealt(servers.len());
        let first = servers[0].port.to_string();
        for (server, (from, to)) in servers.iter().zip(&ranges) {
            let mut wire = server.wire()?;
            wire.call(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()])?;
            wire.call(&["CLUSTER", "MEET", "127.0.0.1", &first, &buses[0]])?;
        }
        for server in &servers {
            let mut wire = server.wire()?;
            wait_for("the cluster", || {
                let info = wire.text(&["CLUSTER", "INFO"])?;
                let size = format!("cluster_size:{primaries}");
                Ok(info.contains("cluster_state:ok") && info.lines().any(|line| line.trim_end() == size))
            })?;
        }
        Ok(Self { servers, layout, homes, is_cluster: true })
    }

    /// A replica of one of the primaries, which has all that it has.
    fn replica_of(&self, primary: usize) -> io::Result<Server> {
        let (replica, bus) = Self::node()?;
        let (id, mut wire) = (self.servers[primary].wire()?.text(&["CLUSTER", "MYID"])?, replica.wire()?);
        self.servers[0].wire()?.call(&["CLUSTER", "MEET", "127.0.0.1", &replica.port.to_string(), &bus])?;
        wait_for("the replica to know its primary", || Ok(wire.call(&["CLUSTER", "REPLICATE", &id]).is_ok()))?;
        wait_for("the replica to have everything", || {
            Ok(wire.text(&["INFO", "replication"])?.contains("master_link_status:up"))
        })?;
        Ok(replica)
    }

    fn server_of(&self, partition: u8) -> &Server {
        &self.servers[self.homes[usize::from(partition)]]
    }

    fn daemon(&self, policies: &str) -> io::Result<Daemon> {
        let places: Vec<String> = self.servers.iter().map(|server| format!("'127.0.0.1:{}'", server.port)).collect();
        let place = if self.is_cluster {
            format!("cluster = [{}]", places.join(", "))
        } else {
            format!("url = 'redis://127.0.0.1:{}'", self.servers[0].port)
        };
        let partitions = self.layout.partitioning().partitions;
        let cut = if partitions > 1 { format!("partitions = {partitions}") } else { String::new() };
        let daemon = self.servers[0].daemon_of(&format!("{place}\n{cut}"), policies)?;
        daemon.wait_until_it_serves()?;
        if self.is_cluster {
            daemon.wait_until_it_says("serving a server of the cluster", self.servers.len())?;
        }
        Ok(daemon)
    }

    /// Put a job into each of the buckets: they are scheduled, and due.
    fn schedule(&self) -> io::Result<()> {
        let mut queues = vec![Vec::new(); self.servers.len()];
        for n in 0..BUCKETS {
            let bucket = BucketName::parse(format!("cluster-{n}").as_bytes()).map_err(io::Error::other)?;
            let number = self.layout.number_of(&bucket);
            queues[self.homes[usize::from(number)]].push(self.layout.partition(number).queue(&bucket));
        }
        for (server, queues) in self.servers.iter().zip(&queues) {
            let mut load = Load::of(queues.iter().map(|queue| vec!["FCALL", "drip_push", "1", queue.as_str(), JOB]));
            server.wire()?.run(&mut load, queues.len(), 200)?;
        }
        Ok(())
    }

    /// Dispatches a second when everything is due, from the first one to the last.
    fn rate(&self, costs: &Costs) -> io::Result<f64> {
        for server in &self.servers {
            server.wire()?.call(&["FLUSHALL"])?;
        }
        let daemon = self.daemon(SLOW)?;
        daemon.freeze(true)?;
        self.schedule()?;
        let before = self.spent(&daemon)?;
        daemon.freeze(false)?;
        let ready: Vec<String> = self.layout.all().map(|keys| keys.ready(&Route::default())).collect();
        let mut wires =
            self.layout.all().map(|keys| self.server_of(keys.number()).wire()).collect::<io::Result<Vec<Wire>>>()?;
        wait_for("the jobs to leave their buckets", || {
            let lengths = wires.iter_mut().zip(&ready).map(|(wire, key)| wire.int(&["XLEN", key]));
            Ok(lengths.sum::<io::Result<i64>>()? >= BUCKETS as i64)
        })?;
        costs.add((self.spent(&daemon)? - before).a_job(BUCKETS));
        let times = wires.iter_mut().zip(&ready).map(|(wire, key)| dispatch_times(wire, key));
        rate_of(&times.collect::<io::Result<Vec<_>>>()?.concat())
    }

    fn spent(&self, daemon: &Daemon) -> io::Result<super::measure::Cost> {
        let mut all = spent(&self.servers[0], std::slice::from_ref(daemon))?;
        for server in &self.servers[1..] {
            all.redis_us += spent(server, &[])?.redis_us;
        }
        Ok(all)
    }
}

/// How late the jobs of two primaries leave in the ten seconds before the third is killed, and in those after.
fn lateness_of_the_others() -> io::Result<(Times, Times)> {
    const KILLED: usize = 1;
    let mut system = System::cluster(3)?;
    let _replicas =
        (0..system.servers.len()).map(|primary| system.replica_of(primary)).collect::<io::Result<Vec<_>>>()?;
    let _daemon = system.daemon(STEADY)?;
    let mut others = Vec::new();
    for keys in system.layout.all() {
        let mut names = (0..).filter_map(|n| BucketName::parse(format!("steady-{n}").as_bytes()).ok());
        let bucket = names.find(|name| system.layout.number_of(name) == keys.number()).expect("some name of so many");
        let (queue, mut wire) = (keys.queue(&bucket), system.server_of(keys.number()).wire()?);
        wire.run(&mut Load::of([vec!["LPUSH", queue.as_str(), JOB]].into_iter()), STEADY_JOBS, 64)?;
        if system.homes[usize::from(keys.number())] != KILLED {
            others.push((wire, keys.ready(&Route::default())));
        }
    }
    std::thread::sleep(WATCHED);
    drop(system.servers.remove(KILLED));
    let killed_us = now_us(&mut others[0].0)?;
    std::thread::sleep(WATCHED);
    let mut left = Vec::new();
    for (wire, ready) in &mut others {
        left.extend(parts(&wire.call(&["XRANGE", ready, "-", "+"])?).iter().filter_map(Dispatch::of));
    }
    let (before, after): (Vec<_>, Vec<_>) = left.iter().partition(|job| job.at_us < killed_us);
    Ok((lateness(before.into_iter()), lateness(after.into_iter())))
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    throughput(report)?;
    let seen = (0..PAIRS).map(|_| lateness_of_the_others()).collect::<io::Result<Vec<_>>>()?;
    let pairs: Vec<_> = seen.iter().map(|(before, after)| (after.ms(99.0), before.ms(99.0))).collect();
    let pairs = Pairs::of(&pairs);
    report.add(
        Row::of(
            "cluster",
            "lateness p99 of the jobs of two primaries, ten seconds from the kill of the third",
            pairs.mine,
            "ms",
        )
        .beside("the ten seconds before", pairs.beside.median)
        .ratio(pairs.ratio)
        .ratio_goal(Bound::AtMost(2.0)),
    );
    Ok(())
}

/// What partitions and clusters carry.
fn throughput(report: &mut Report) -> io::Result<()> {
    let plain = System::one(1)?;
    let systems = [
        ("16 partitions on one Redis", System::one(PARTITIONS)?),
        ("a cluster of 1 primary", System::cluster(1)?),
        ("a cluster of 2 primaries", System::cluster(2)?),
        ("a cluster of 3 primaries", System::cluster(3)?),
    ];
    let (mut pairs, costs): ([Vec<(f64, f64)>; 4], [Costs; 4]) = Default::default();
    let of_plain = Costs::default();
    plain.rate(&of_plain)?; // the first one does not count
    for _ in 0..PAIRS {
        for (((_, system), pairs), costs) in systems.iter().zip(&mut pairs).zip(&costs) {
            let beside = plain.rate(&of_plain)?;
            pairs.push((system.rate(costs)?, beside));
        }
    }
    for (((what, _), pairs), costs) in systems.iter().zip(&pairs).zip(&costs) {
        let pairs = Pairs::of(pairs);
        report.add(
            Row::of("cluster", format!("30,000 buckets due at once, {what}"), pairs.mine, "/s")
                .beside("one Redis, no partitions", pairs.beside.median)
                .ratio(pairs.ratio)
                .cost(costs.median()),
        );
    }
    report.add(Row::new("cluster", "one Redis, no partitions: Redis, a job", of_plain.median().redis_us, "us"));
    Ok(())
}
