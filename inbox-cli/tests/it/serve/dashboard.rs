//! The pages of the service.

use reqwest::{Method, StatusCode};

use crate::{
    serve::service::{Service, TOKEN},
    support::Place,
};

#[tokio::test]
async fn the_dashboard_is_at_its_path_for_those_with_a_token() {
    let place = Place::new();
    let configuration = "store = \"sqlite://inbox.db\"\n\
        [api]\ntokens = [{ env = \"INBOX_TEST_TOKEN\" }]\n\
        [dashboard]\ntokens = [{ env = \"INBOX_TEST_ADMIN\" }]\nread_only = true";
    place.file("inbox.toml", configuration);
    let arguments = ["serve", "--config", "inbox.toml", "--listen", "127.0.0.1:0"];
    let mut command = place.command(&arguments);
    command.env("INBOX_TEST_ADMIN", "another-token-0123456789");
    let service = Service::run(command);
    service.send("1").await;
    let get = |path: &str| service.request(Method::GET, path);
    let other = get("/dashboard/overview").send().await.unwrap();
    assert_eq!(other.status(), StatusCode::UNAUTHORIZED);
    let admin = "another-token-0123456789";
    for path in ["/dashboard", "/dashboard/", "/dashboard/overview"] {
        // In place of the API's token, not in addition to it.
        let request = reqwest::Client::new().get(format!("{}{path}", service.base));
        let answer = request.bearer_auth(admin).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert!(
            answer.url().path().ends_with("/dashboard/overview"),
            "{path}"
        );
        let text = answer.text().await.unwrap();
        assert!(text.contains("messages?handler=h"), "{text}");
        assert!(!text.contains(TOKEN) && !text.contains(admin));
    }
    let pause = reqwest::Client::new()
        .post(format!("{}/dashboard/api/pause", service.base))
        .bearer_auth(admin)
        .body("{}");
    let status = pause.send().await.unwrap().status();
    assert_eq!(status, StatusCode::FORBIDDEN);
    // The service's own paths are as they were.
    assert_eq!(
        get("/v1/openapi.json").send().await.unwrap().status(),
        StatusCode::OK
    );
    assert!(service.said().contains("dashboard at /dashboard (1 token)"));
}
