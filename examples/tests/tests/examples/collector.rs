//! A collector of traces: OTLP over HTTP, as protobuf.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message as _;

/// A span, and the service that has exported it.
#[derive(Clone)]
pub(crate) struct Exported {
    pub(crate) service: String,
    pub(crate) span: Span,
}

impl Exported {
    /// An attribute that is text or a number.
    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        text(&self.span.attributes, name)
    }
}

fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|one| one.key == name)?;
    match found.value.as_ref()? {
        AnyValue {
            value: Some(Value::StringValue(text)),
        } => Some(text.clone()),
        AnyValue {
            value: Some(Value::IntValue(number)),
        } => Some(number.to_string()),
        _ => None,
    }
}

/// What was exported to it. It ends with the process.
pub(crate) struct Collector {
    pub(crate) endpoint: String,
    spans: Arc<Mutex<Vec<Exported>>>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let spans = Arc::new(Mutex::new(Vec::new()));
        let collected = spans.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let collected = collected.clone();
                thread::spawn(move || {
                    let mut reader = BufReader::new(stream);
                    while let Ok(spans) = take(&mut reader) {
                        let mut all = collected.lock().unwrap_or_else(PoisonError::into_inner);
                        all.extend(spans);
                    }
                });
            }
        });
        Self { endpoint, spans }
    }

    pub(crate) fn spans(&self) -> Vec<Exported> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.clone()
    }
}

/// Reads a request and answers it.
fn take(reader: &mut BufReader<TcpStream>) -> io::Result<Vec<Exported>> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if line != "POST /v1/traces HTTP/1.1\r\n" {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut length = 0;
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let header = line.to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request = ExportTraceServiceRequest::decode(&body[..]).map_err(io::Error::other)?;
    let answer =
        "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
    reader.get_mut().write_all(answer.as_bytes())?;
    let mut exported = Vec::new();
    for of_service in request.resource_spans {
        let resource = of_service.resource.unwrap_or_default();
        let service = text(&resource.attributes, "service.name").unwrap_or_default();
        let spans = of_service
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans);
        exported.extend(spans.map(|span| Exported {
            service: service.clone(),
            span,
        }));
    }
    Ok(exported)
}
