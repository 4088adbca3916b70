//! Connections as they are accepted.

use std::{
    future::{Ready, ready},
    io,
};

use axum::{Extension, middleware::AddExtension};
use axum_server::accept::Accept;
use inbox_http::api::{Connection, WatchedStream};
use tokio::net::TcpStream;
use tower_layer::Layer as _;

/// Gives each request its connection, of which the JSON API asks whether its caller is still there.
#[derive(Clone, Copy)]
pub(super) struct WatchingAcceptor;

impl<S> Accept<TcpStream, S> for WatchingAcceptor {
    type Stream = WatchedStream;
    type Service = AddExtension<S, Connection>;
    type Future = Ready<io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let (connection, stream) = Connection::watch(stream);
        ready(Ok((stream, Extension(connection).layer(service))))
    }
}
