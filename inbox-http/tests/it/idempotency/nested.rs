//! Layers within nested routers, whose requests have lost the beginning of their path.

use std::convert::Infallible;

use axum::{
    Router,
    body::Body,
    extract::{Path, Request},
    http::{Method, Response},
    routing::{get, post},
};
use inbox_http::idempotency::Demand;
use tower::{Layer as _, service_fn};

use super::{Runs, layer};
use crate::{
    places::{Place, on_each_store},
    server::Site,
};

on_each_store!(
    a_parameter_of_the_nest_tells_requests_apart,
    a_parameter_may_be_renamed,
    nested_services_have_keys_of_their_own,
    nested_fallbacks_have_keys_of_their_own,
    routes_are_named_with_what_they_are_nested_in,
);

/// A router that counts at `/charges`, within the layer.
fn charges<P: Place>(place: &P, runs: &Runs) -> Router {
    let runs = runs.clone();
    let charge = async move |Path(tenant): Path<String>| format!("{tenant}: {}", runs.count());
    Router::new()
        .route("/charges", post(charge))
        .layer(layer(place.inbox()))
}

async fn a_parameter_of_the_nest_tells_requests_apart<P: Place>(place: P) {
    let runs = Runs::default();
    let once = charges(&place, &runs);
    let twice = Router::new().nest("/{tenant}", charges(&place, &runs));
    let app = Router::new()
        .nest("/tenants/{tenant}", once)
        .nest("/deep", twice);
    let site = Site::serve(app).await;
    for (prefix, run) in [("/tenants", 1), ("/deep", 2)] {
        let path = |tenant: &str| format!("{prefix}/{tenant}/charges");
        for _ in 0..2 {
            let answer = site.with_key(&path("a"), "k", "").await;
            assert_eq!(answer.text(), format!("a: {run}"));
            let other = site.with_key(&path("b"), "k", "").await;
            assert_eq!(
                (other.status.as_u16(), other.problem().as_str()),
                (422, "key-reused")
            );
        }
    }
}

/// Defect: behind the next deployment the copy ran, as its key was another one.
async fn a_parameter_may_be_renamed<P: Place>(place: P) {
    let runs = Runs::default();
    for (nest, route) in [
        ("/tenants/{tenant}", "/orders/{id}"),
        ("/tenants/{name}", "/orders/{order}"),
        ("/tenants/{name}", "/{*order}"),
    ] {
        let runs = runs.clone();
        let pay = async move || format!("run {}", runs.count());
        let inner = Router::new()
            .route(route, post(pay))
            .layer(layer(place.inbox()));
        let site = Site::serve(Router::new().nest(nest, inner)).await;
        let answer = site.with_key("/tenants/a/orders/7", "k", "{}").await;
        // Another route is another place.
        let run = if route == "/{*order}" { 2 } else { 1 };
        assert_eq!(answer.text(), format!("run {run}"), "{route}");
    }
}

async fn nested_services_have_keys_of_their_own<P: Place>(place: P) {
    let runs = Runs::default();
    let service = |region: &'static str| {
        let runs = runs.clone();
        layer(place.inbox()).layer(service_fn(move |request: Request| {
            let text = format!("{region}{} {}", request.uri().path(), runs.count());
            async move { Ok::<_, Infallible>(Response::new(Body::from(text))) }
        }))
    };
    let app = Router::new()
        .nest_service("/eu", service("eu"))
        .nest_service("/us", service("us"))
        .nest_service("/of/{tenant}", service("of"));
    let site = Site::serve(app).await;
    for _ in 0..2 {
        for (path, text) in [
            ("/eu/pay", "eu/pay 1"),
            ("/us/pay", "us/pay 2"),
            ("/of/1/pay", "of/pay 3"),
            ("/of/2/pay", "of/pay 4"),
        ] {
            assert_eq!(site.with_key(path, "k", "").await.text(), text);
        }
    }
    let other = site.with_key("/eu/pay?x=1", "k", "").await;
    assert_eq!(other.problem(), "key-reused");
}

async fn nested_fallbacks_have_keys_of_their_own<P: Place>(place: P) {
    let runs = Runs::default();
    let inner = |name: &'static str| {
        let runs = runs.clone();
        Router::new()
            .route("/known", get(|| async {}))
            .fallback(async move || format!("{name} {}", runs.count()))
            .layer(layer(place.inbox()))
    };
    let app = Router::new()
        .nest("/a", inner("a"))
        .nest("/b", inner("b"))
        .nest_service("/c", inner("c"));
    let site = Site::serve(app).await;
    for _ in 0..2 {
        for (path, text) in [("/a/x", "a 1"), ("/b/x", "b 2"), ("/c/x", "c 3")] {
            assert_eq!(site.with_key(path, "k", "").await.text(), text);
        }
    }
}

async fn routes_are_named_with_what_they_are_nested_in<P: Place>(place: P) {
    let layer = layer(place.inbox())
        .route(Method::POST, "/a/known", Demand::Ignored)
        .route(Method::POST, "/a/unknown", Demand::Ignored);
    let inner = Router::new()
        .route("/known", post(|| async {}))
        .fallback(|| async {})
        .layer(layer);
    let site = Site::serve(Router::new().nest("/a", inner)).await;
    for (path, status) in [("/a/known", 200), ("/a/unknown", 200), ("/a/other", 400)] {
        assert_eq!(site.post(path, &[], "").await.status, status, "{path}");
    }
}
