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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_takes_the_round_trip_longer_and_many_under_way_do_not_wait_for_each_other() {
        let echo = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let to = echo.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            let mut server = echo.accept().expect("a client").0;
            let mut byte = [0];
            while server.read_exact(&mut byte).is_ok() && server.write_all(&byte).is_ok() {}
        });
        let round_trip = Duration::from_millis(20);
        let mut client =
            TcpStream::connect(("127.0.0.1", delay(to, round_trip).expect("a proxy"))).expect("it listens");
        let start = Instant::now();
        for byte in 0..10 {
            client.write_all(&[byte]).expect("it takes");
        }
        let mut answer = [0; 10];
        client.read_exact(&mut answer).expect("it answers");
        assert_eq!(answer, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!((round_trip..3 * round_trip).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}
