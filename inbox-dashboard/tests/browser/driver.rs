//! A browser that looks at a dashboard.

use std::{path::PathBuf, process::Stdio, time::Duration};

use axum::Router;
use thirtyfour::prelude::*;
use tokio::{
    net::TcpListener,
    process::{Child, Command},
    time::{Instant, sleep},
};

/// How long a page may take to show what is expected of it.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const WIDE: (u32, u32) = (1280, 900);

pub(crate) struct Browser {
    driver: WebDriver,
    /// Killed with it.
    _process: Child,
    base: String,
}

/// Whether a missing browser is a failure.
fn is_required() -> bool {
    std::env::var_os("INBOX_TEST_BROWSER").is_some_and(|value| value == "required")
}

impl Browser {
    /// Serves the dashboard under a path, and opens a browser; `None` where there is none.
    pub(crate) async fn open(pages: Router) -> Option<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let port = free_port().await;
        let started = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let process = match started {
            Ok(process) => process,
            Err(error) => {
                assert!(!is_required(), "chromedriver: {error}");
                println!("NOT CHECKED: there is no chromedriver on PATH: {error}");
                return None;
            }
        };
        let mut capabilities = DesiredCapabilities::chrome();
        for argument in [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ] {
            capabilities.add_arg(argument).unwrap();
        }
        let logs = serde_json::json!({ "browser": "ALL" });
        capabilities.set("goog:loggingPrefs", logs).unwrap();
        let url = format!("http://127.0.0.1:{port}");
        let begun = Instant::now();
        let driver = loop {
            match WebDriver::new(&url, capabilities.clone()).await {
                Ok(driver) => break driver,
                Err(error) if begun.elapsed() > PATIENCE => panic!("no session: {error}"),
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/ops/inbox", listener.local_addr().unwrap());
        let app = Router::new().nest("/ops/inbox", pages);
        tokio::spawn(async move { axum::serve(listener, app).await });
        let browser = Self {
            driver,
            _process: process,
            base,
        };
        browser.resize(WIDE.0, WIDE.1).await;
        Some(browser)
    }

    pub(crate) async fn go(&self, page: &str) {
        let url = format!("{}/{page}", self.base);
        self.driver.goto(url).await.unwrap();
    }

    pub(crate) async fn url(&self) -> String {
        self.driver.current_url().await.unwrap().to_string()
    }

    async fn text(&self) -> String {
        let body = self.driver.find(By::Tag("body")).await.unwrap();
        body.text().await.unwrap_or_default()
    }

    /// Waits until the page shows it.
    pub(crate) async fn shows(&self, text: &str) {
        let begun = Instant::now();
        loop {
            let shown = self.text().await;
            if shown.contains(text) {
                return;
            }
            let url = self.url().await;
            assert!(begun.elapsed() < PATIENCE, "no {text:?} at {url}: {shown}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) async fn follow(&self, text: &str) {
        let link = self.driver.find(By::LinkText(text)).await.unwrap();
        link.click().await.unwrap();
    }

    pub(crate) async fn press(&self, label: &str) {
        let path = format!("//button[normalize-space()=\"{label}\"]");
        let button = self.driver.find(By::XPath(path)).await.unwrap();
        button.click().await.unwrap();
    }

    pub(crate) async fn tick(&self, label: &str) {
        let path = format!("//input[@aria-label=\"{label}\"]");
        let field = self.driver.find(By::XPath(path)).await.unwrap();
        field.click().await.unwrap();
    }

    pub(crate) async fn fill(&self, name: &str, text: &str) {
        let field = self.driver.find(By::Name(name)).await.unwrap();
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    pub(crate) async fn tab_and_enter(&self) {
        let body = self.driver.find(By::Tag("body")).await.unwrap();
        body.send_keys(Key::Tab + Key::Enter).await.unwrap();
    }

    pub(crate) async fn resize(&self, width: u32, height: u32) {
        self.driver
            .set_window_rect(0, 0, width, height)
            .await
            .unwrap();
    }

    /// Whether nothing but tables has to be scrolled sideways.
    pub(crate) async fn fits(&self) -> bool {
        let script = "return document.documentElement.scrollWidth <= window.innerWidth";
        let answer = self.driver.execute(script, vec![]).await.unwrap();
        answer.json().as_bool().unwrap()
    }

    /// Keeps a picture of the page.
    pub(crate) async fn keep(&self, name: &str) {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{name}.png"));
        self.driver.screenshot(&path).await.unwrap();
    }

    /// Ends it. What the browser has complained of, such as what the policy forbids, is a failure.
    pub(crate) async fn close(self) {
        let complaints = self.driver.get_log("browser").await.unwrap();
        // A page with a mistake in it is sent with status 400, which the browser notes.
        let (expected, complaints): (Vec<_>, Vec<_>) = complaints
            .iter()
            .map(|entry| entry.message.clone())
            .partition(|entry| entry.contains("status of 400"));
        assert_eq!(expected.len(), 1, "the browser tells what it complains of");
        self.driver.quit().await.unwrap();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

async fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}
