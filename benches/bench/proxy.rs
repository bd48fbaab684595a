//! A network between a daemon and Redis: a proxy that hands on what it gets, each way half a round trip later, and in the
//! meantime takes in more.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Listen on a loopback port of its own, and hand everything on to `to`. Replies the port. The threads end with their
/// connections, and with the process.
pub(super) fn delay(to: u16, round_trip: Duration) -> io::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            if let Err(why) = client.and_then(|client| connect(client, to, round_trip / 2)) {
                eprintln!("the delaying proxy lost a connection: {why}");
            }
        }
    });
    Ok(port)
}

fn connect(client: TcpStream, to: u16, one_way: Duration) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", to))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = (client.try_clone()?, client);
    let (from_server, to_server) = (server.try_clone()?, server);
    hand_on(from_client, to_server, one_way);
    hand_on(from_server, to_client, one_way);
    Ok(())
}

/// One way: a thread takes in, another hands on what has waited long enough.
fn hand_on(mut from: TcpStream, mut to: TcpStream, later: Duration) {
    let (sender, taken) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + later, buffer[..n].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (at, bytes) in taken {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both); // its end is the other's
    });
}
