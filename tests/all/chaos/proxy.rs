//! What stands between the daemons and Redis and forwards each byte, until it forwards nothing more of the connections that there are, and
//! closes none of them: as when a firewall forgets them. Those made later pass.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use super::stage::Stage;

/// How often a thread that waits looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Default)]
struct State {
    /// The number of the next connection.
    next: AtomicU64,
    /// Connections with a smaller number are dead, in the direction to the server and in the one from it.
    dead: [AtomicU64; 2],
    is_over: AtomicBool,
}

pub struct Proxy {
    pub port: u16,
    state: Arc<State>,
    listener: Option<JoinHandle<()>>,
}

impl Proxy {
    /// One that forwards to a port of this machine.
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("a port").port();
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        let listener = std::thread::spawn(move || accept(&listener, server, &shared));
        Self { port, state, listener: Some(listener) }
    }

    /// From now on the connections that there are say nothing more, in these directions. Replies how many were made up to now.
    fn freeze(&self, directions: &[usize]) -> u64 {
        let made = self.state.next.load(Ordering::Relaxed);
        for direction in directions {
            self.state.dead[*direction].store(made, Ordering::Relaxed);
        }
        made
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // wakes the listener
        let _ = self.listener.take().expect("it runs").join();
    }
}

fn accept(listener: &TcpListener, server: u16, state: &Arc<State>) {
    let mut threads = Vec::new();
    while let Ok((client, _)) = listener.accept() {
        if state.is_over.load(Ordering::Relaxed) {
            break;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
        let number = state.next.fetch_add(1, Ordering::Relaxed);
        let ways = [(&client, &server), (&server, &client)];
        for (direction, (from, to)) in ways.into_iter().enumerate() {
            let (from, to) = (from.try_clone().expect("a handle"), to.try_clone().expect("a handle"));
            let state = Arc::clone(state);
            threads.push(std::thread::spawn(move || forward(from, to, &state, number, direction)));
        }
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
}

/// Forward until one side closes. What is dead is neither read nor closed.
fn forward(mut from: TcpStream, mut to: TcpStream, state: &State, number: u64, direction: usize) {
    let _ = from.set_nodelay(true);
    let _ = from.set_read_timeout(Some(LOOK));
    let mut bytes = vec![0; 64 * 1024];
    while !state.is_over.load(Ordering::Relaxed) {
        let is_dead = || number < state.dead[direction].load(Ordering::Relaxed);
        if is_dead() {
            sleep(LOOK);
            continue;
        }
        match from.read(&mut bytes) {
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(n) if n > 0 && is_dead() => {} // it came too late
            Ok(n) if n > 0 && to.write_all(&bytes[..n]).is_ok() => {}
            _ => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Nothing more passes in either direction.
pub fn freeze_both(stage: &mut Stage) {
    freeze(stage, &[0, 1]);
}

/// What the daemons ask is heard, and done; they hear no answer.
pub fn freeze_answers(stage: &mut Stage) {
    freeze(stage, &[1]);
}

/// Wait until each daemon has made another connection by itself.
fn freeze(stage: &mut Stage, directions: &[usize]) {
    let proxy = stage.proxy.as_ref().expect("a stage with a proxy");
    let made = proxy.freeze(directions);
    let daemons = u64::try_from(stage.daemons.len()).expect("few");
    crate::rig::eventually("the daemons connect again", || proxy.state.next.load(Ordering::Relaxed) >= made + daemons);
}
