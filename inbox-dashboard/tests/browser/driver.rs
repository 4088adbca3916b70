//! A browser that looks at a dashboard. The command's tests include this file, too.

use std::{path::PathBuf, process::Stdio, time::Duration};

use thirtyfour::{error::WebDriverErrorInner, prelude::*};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// How long a page may take to show what is expected of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long to wait between two looks.
const INTERVAL: Duration = Duration::from_millis(100);

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
    /// Opens a browser for the dashboard at `base`; `None` where there is no browser.
    pub(crate) async fn open(base: String) -> Option<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let started = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let mut process = match started {
            Ok(process) => process,
            Err(error) => {
                assert!(!is_required(), "chromedriver: {error}");
                println!("NOT CHECKED: there is no chromedriver on PATH: {error}");
                return None;
            }
        };
        let port = timeout(PATIENCE, port_of(&mut process)).await.unwrap();
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

    async fn text(&self) -> WebDriverResult<String> {
        self.driver.find(By::Tag("body")).await?.text().await
    }

    /// Waits until the page shows it.
    pub(crate) async fn shows(&self, text: &str) {
        let begun = Instant::now();
        loop {
            let shown = self.text().await;
            if shown.as_ref().is_ok_and(|shown| shown.contains(text)) {
                return;
            }
            let url = self.url().await;
            assert!(
                begun.elapsed() < PATIENCE,
                "no {text:?} at {url}: {shown:?}"
            );
            sleep(INTERVAL).await;
        }
    }

    /// Waits until the page shows it no longer.
    #[allow(dead_code, reason = "of two test programs one needs it")]
    pub(crate) async fn lacks(&self, text: &str) {
        let begun = Instant::now();
        loop {
            let shown = self.text().await;
            if shown.as_ref().is_ok_and(|shown| !shown.contains(text)) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{text:?} in {shown:?}");
            sleep(INTERVAL).await;
        }
    }

    /// Waits until the address ends so.
    pub(crate) async fn is_at(&self, end: &str) {
        let begun = Instant::now();
        loop {
            let url = self.url().await;
            if url.ends_with(end) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{url} does not end with {end}");
            sleep(INTERVAL).await;
        }
    }

    /// Does something with an element, which need not be there yet: the page may still be loading, or be
    /// about to renew a part of itself.
    async fn with<'a, F>(&'a self, by: By, action: impl Fn(WebElement) -> F)
    where
        F: Future<Output = WebDriverResult<()>> + 'a,
    {
        let begun = Instant::now();
        loop {
            let done = async { action(self.driver.find(by.clone()).await?).await };
            match done.await {
                Ok(()) => return,
                Err(error) if is_not_there_yet(&error) && begun.elapsed() < PATIENCE => {
                    sleep(INTERVAL).await;
                }
                Err(error) => panic!("{by:?} at {}: {error}", self.url().await),
            }
        }
    }

    async fn click(&self, by: By) {
        self.with(by, |element| async move { element.click().await })
            .await;
    }

    pub(crate) async fn follow(&self, text: &str) {
        self.click(By::LinkText(text)).await;
    }

    pub(crate) async fn press(&self, label: &str) {
        let path = format!("//button[normalize-space()=\"{label}\"]");
        self.click(By::XPath(path)).await;
    }

    pub(crate) async fn tick(&self, label: &str) {
        let path = format!("//input[@aria-label=\"{label}\"]");
        self.click(By::XPath(path)).await;
    }

    pub(crate) async fn fill(&self, name: &str, text: &str) {
        self.with(By::Name(name), |field| async move {
            field.clear().await?;
            field.send_keys(text).await
        })
        .await;
    }

    pub(crate) async fn tab_and_enter(&self) {
        self.with(By::Tag("body"), |body| async move {
            body.send_keys(Key::Tab + Key::Enter).await
        })
        .await;
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

    /// Ends it. What the browser has complained of, such as what the policy forbids, is a failure, but for so
    /// many pages of status 400.
    pub(crate) async fn close(self, mistakes: usize) {
        let complaints = self.driver.get_log("browser").await.unwrap();
        // A page with a mistake in it is sent with status 400, which the browser notes.
        let (expected, complaints): (Vec<_>, Vec<_>) = complaints
            .iter()
            .map(|entry| entry.message.clone())
            .partition(|entry| entry.contains("status of 400"));
        assert_eq!(expected.len(), mistakes, "{complaints:#?}");
        self.driver.quit().await.unwrap();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

/// Whether nothing was done, because the element is not there, or not in a state to be used.
fn is_not_there_yet(error: &WebDriverError) -> bool {
    matches!(
        error.as_inner(),
        WebDriverErrorInner::NoSuchElement(_)
            | WebDriverErrorInner::StaleElementReference(_)
            | WebDriverErrorInner::ElementNotInteractable(_)
            | WebDriverErrorInner::ElementClickIntercepted(_)
    )
}

/// The port that it has chosen.
async fn port_of(process: &mut Child) -> String {
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let words = "ChromeDriver was started successfully on port ";
        if let Some(port) = line.strip_prefix(words) {
            let port = port.trim_end_matches('.').to_owned();
            // What it says later is read, too, so that it can go on.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return port;
        }
    }
    panic!("chromedriver did not start");
}
