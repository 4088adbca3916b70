//! A short exchange with a server on the loopback interface.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn connect(port: u16) -> io::Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends `request` and reads the first `N` bytes of the answer.
pub(crate) fn ask<const N: usize>(port: u16, request: &[u8]) -> io::Result<[u8; N]> {
    let mut stream = connect(port)?;
    stream.write_all(request)?;
    let mut answer = [0; N];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
