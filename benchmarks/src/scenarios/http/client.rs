//! A client on one connection, which is kept.

use std::{net::SocketAddr, time::Instant};

use anyhow::{Result, ensure};
use axum::http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use inbox::Bytes;
use tokio::net::TcpStream;

use super::services::{self, Service};
use crate::report::{Latencies, latencies, record};

/// Sends one request after the other until `end`, and returns the times of those after `start`.
pub(super) async fn run(
    address: SocketAddr,
    service: Service,
    payload: usize,
    start: Instant,
    end: Instant,
) -> Result<Latencies> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driving = tokio::spawn(connection);
    let body = Bytes::from(format!(r#"{{"text":"{}"}}"#, "x".repeat(payload)));
    let signature = services::sign(&body);
    let mut random = fastrand::Rng::new();
    let mut calls = latencies()?;
    while Instant::now() < end {
        let id = format!("{:032x}", random.u128(..));
        let request = Request::builder()
            .method(Method::POST)
            .uri(services::PATH)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json");
        let request = if service.is_webhook() {
            request
                .header("x-github-delivery", id)
                .header("x-github-event", "push")
                .header("x-hub-signature-256", &signature)
        } else {
            request.header("idempotency-key", id)
        };
        let request = request.body(Full::new(body.clone()))?;
        let call = Instant::now();
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        ensure!(status.is_success(), "{} answered {status}", service.name());
        if call >= start {
            record(&mut calls, call.elapsed());
        }
    }
    drop(sender);
    driving.await??;
    Ok(calls)
}
