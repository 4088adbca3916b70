//! Free ports on the loopback interface.

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// Below the range from which Linux and macOS take the ports of outgoing connections. A client
/// that reconnects in a loop to a stopped server would sooner or later be given the server's own
/// port as its source, connect to itself, and keep the server from coming back.
const RANGE: std::ops::Range<u16> = 15_000..32_000;

/// A port that stays ours, also while the server that uses it is stopped.
///
/// The TCP side is left to the server; what is held is the UDP socket of the same number, which no
/// server here uses and which every other process that looks for a port this way respects. The
/// operating system gives it back however we end.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _reservation: UdpSocket,
}

impl Port {
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    fn reserve(number: u16) -> io::Result<Self> {
        let address = (Ipv4Addr::LOCALHOST, number);
        let reservation = UdpSocket::bind(address)?;
        TcpListener::bind(address)?;
        Ok(Self {
            number,
            _reservation: reservation,
        })
    }
}

/// Reserves so many free ports.
pub(crate) fn reserve(count: usize) -> io::Result<Vec<Port>> {
    let mut ports = Vec::with_capacity(count);
    let mut refusals = 0;
    while ports.len() < count {
        match Port::reserve(fastrand::u16(RANGE)) {
            Ok(port) => ports.push(port),
            Err(error) if refusals == 1_000 => return Err(error),
            Err(_) => refusals += 1,
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    /// A program that another test is starting holds what this process has open until it runs: what
    /// is closed may stay in use for a moment.
    fn soon<T>(take: impl Fn() -> io::Result<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match take() {
                Ok(taken) => return taken,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_reserved_port_is_refused_to_others_and_free_for_its_server() {
        let ports = reserve(3).unwrap();
        for port in &ports {
            assert!(RANGE.contains(&port.number()));
            assert!(Port::reserve(port.number()).is_err());
            soon(|| TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())));
        }
        let number = ports[0].number();
        drop(ports);
        soon(|| Port::reserve(number));
    }
}
