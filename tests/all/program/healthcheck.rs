//! `dripd healthcheck`: what a container asks of its daemon.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use super::http::Door;
use super::{Shell, Stopped, said};
use crate::rig::{Daemon, Server, eventually, free_port};

const CONFIG: &str = "[defaults]\nrate = '1/h'\n";

fn ask(shell: &Shell, listens: &str, more: &[&str]) -> (i32, String, String) {
    let mut command = shell.command(&[&["healthcheck"], more].concat());
    said(&command.env("DRIPD_HTTP_LISTEN", listens).output().expect("it runs"))
}

#[test]
fn a_daemon_is_well_while_its_loops_turn_and_ready_while_it_serves_redis() {
    let server = Server::start(&[]);
    let door = Door::on(&server, CONFIG);
    let listens = format!("127.0.0.1:{}", door.port); // it chose the port
    let health = |more: &[&str]| ask(&door.shell, &listens, more);
    eventually("it is ready", || health(&["--ready"]).0 == 0);
    assert_eq!(health(&[]), (0, "ok\n".to_owned(), String::new()));

    drop(server);
    eventually("it is not ready", || health(&["--ready"]).0 == 1);
    let (_, out, err) = health(&["--ready"]);
    assert!(out.is_empty() && err.contains("/readyz is 503: this daemon serves no Redis now"), "{out}{err}");
    assert_eq!(health(&[]).0, 0, "to start it again would not help");

    let stopped = Stopped::stop(door.daemon.child.id());
    let (code, _, err) = health(&[]);
    assert!(code == 1 && err.contains("does not answer within 3 s"), "{code} {err}");
    drop(stopped);
    assert_eq!(health(&[]).0, 0);
}

#[test]
fn it_asks_where_the_configuration_or_its_variable_says() {
    let shell = Shell::new(CONFIG);
    let socket = shell.home().join("http.sock");
    let health = |listen: &str| ask(&shell, listen, &[]);
    let path = format!("unix:{}", socket.display());
    let daemon = Daemon::spawn_with(shell.home(), &[("DRIPD_HTTP_LISTEN", &path)]);
    eventually("it is well", || health(&path).0 == 0);

    let nobody = format!("127.0.0.1:{}", free_port());
    let (code, _, err) = health(&nobody);
    assert!(code == 1 && err.contains(&nobody) && err.contains("is one running"), "{code} {err}");
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = other.local_addr().expect("bound").to_string();
    let answers = [&b""[..], b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi\n"];
    let stranger = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = other.accept().expect("asked");
            let _ = stream.read(&mut [0; 1024]).expect("a request");
            stream.write_all(answer).expect("answered");
        }
    });
    let (code, _, err) = health(&at);
    assert!(code == 1 && err.contains(&at), "{code} {err}");
    let (code, _, err) = health(&at);
    assert!(code == 1 && err.contains("it is no dripd"), "{code} {err}");
    stranger.join().expect("it answered");
    // What is wrong with the file since is not the daemon's, which goes on; its own key counts.
    shell.file("config.toml", "[defaults]\nrate = 'soon'\n");
    assert_eq!(health(&path).0, 0);
    shell.file("config.toml", &format!("rate =\n[http]\nlisten = '{path}'\n"));
    assert_eq!(health(&path).0, 0, "no TOML, and the variable counts");
    shell.file("config.toml", "[http]\nlisten = ''\n");
    let (code, _, err) = shell.run(&["healthcheck"]);
    assert!(code == 78 && err.contains("http.listen is \"\""), "{code} {err}");
    drop(daemon);
}
