//! Where spans go.

use std::error::Error;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing_subscriber::{Layer as _, filter::LevelFilter, layer::SubscriberExt as _};

/// Exports this process's spans as those of `service`. What is returned has to be shut down at the end.
pub(crate) fn start(service: &'static str) -> Result<SdkTracerProvider, Box<dyn Error>> {
    // For a collector at https://; that there is one already is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exporter = SpanExporter::builder().with_http().build()?;
    let provider = SdkTracerProvider::builder()
        .with_resource(Resource::builder().with_service_name(service).build())
        .with_batch_exporter(exporter)
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer(service));
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(LevelFilter::INFO));
    tracing::subscriber::set_global_default(subscriber)?;
    Ok(provider)
}
