//! A server of ours in a container.
//!
//! Ports are the same inside and outside, so that servers which tell clients their address (Redis
//! Cluster, MongoDB) tell them one that works, and published on the loopback interface only.
//! Should the test process be killed, removing the container needs the `docker` command.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use testcontainers::core::client::docker_client_instance;
use testcontainers::core::{ContainerPort, ContainerRequest};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage, ImageExt as _};
use tokio::runtime::Runtime;

use crate::error::{Doing as _, Error};
use crate::kind::Kind;
use crate::kinds::{Image, Recipe, recipe};
use crate::port::{self, Port};
use crate::start_up::{self, Start};
use crate::watchdog::Watchdog;

const ENGINE_ANSWERS: Duration = Duration::from_secs(5);
const STOP_SECONDS: i32 = 60;

pub(crate) struct Docker {
    kind: Kind,
    recipe: Arc<dyn Recipe>,
    ports: Vec<Port>,
    /// `None` only while dropping.
    container: Option<ContainerAsync<GenericImage>>,
    _watchdog: Watchdog,
}

/// Whether a Docker engine answers, or why not.
pub(crate) fn answers() -> Result<(), String> {
    let ping = async {
        let docker = docker_client_instance()
            .await
            .map_err(|error| error.to_string())?;
        docker.ping().await.map_err(|error| error.to_string())
    };
    let limited = async { tokio::time::timeout(ENGINE_ANSWERS, ping).await };
    match run(limited).map_err(|error| error.to_string())? {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err("it does not answer".to_owned()),
    }
}

/// The image a server of this kind is started from, if there is one.
pub(crate) fn image_name(kind: Kind) -> Option<String> {
    let recipe = recipe(kind);
    let image = recipe.image(&vec![0; recipe.ports()])?;
    Some(format!("{}:{}", image.name, image.tag))
}

impl Docker {
    /// Pulls the image if need be, and starts a server in its own container.
    pub(crate) fn create(kind: Kind, arguments: &[&str]) -> Result<Self, Error> {
        let recipe = recipe(kind);
        let ports = port::reserve(recipe.ports()).doing("looking for free ports")?;
        let numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        let name = format!("test-servers-{kind}-{:016x}", fastrand::u64(..));
        let watchdog = Watchdog::over_container(&name).doing("starting the watchdog")?;
        let mut image = recipe
            .image(&numbers)
            .ok_or_else(|| Error::Docker(format!("there is no image of {kind}")))?;
        let added = arguments.iter().map(|&word| word.to_owned());
        image.arguments.extend(added);
        let request = request(image, &numbers[..recipe.nodes()], name);
        let container = run(request.start())?.map_err(docker)?;
        let server = Self {
            kind,
            recipe,
            ports,
            container: Some(container),
            _watchdog: watchdog,
        };
        server.wait(true)?;
        Ok(server)
    }

    /// Where clients connect to each node, the first one's first.
    pub(crate) fn urls(&self) -> Vec<String> {
        let ports = self.port_numbers();
        let of_nodes = ports.iter().take(self.recipe.nodes());
        of_nodes.map(|&port| self.recipe.url(port)).collect()
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports[0].number()
    }

    pub(crate) fn start(&self) -> Result<(), Error> {
        if self.is_running()? {
            return Ok(());
        }
        run(self.container()?.start())?.map_err(docker)?;
        self.wait(false)
    }

    pub(crate) fn is_running(&self) -> Result<bool, Error> {
        run(self.container()?.is_running())?.map_err(docker)
    }

    pub(crate) fn stop(&self) -> Result<(), Error> {
        let container = self.container()?;
        run(container.stop_with_timeout(Some(STOP_SECONDS)))?.map_err(docker)
    }

    pub(crate) fn kill(&self) -> Result<(), Error> {
        if !self.is_running()? {
            return Ok(());
        }
        let id = self.container()?.id();
        // testcontainers only stops; the engine's own request for SIGKILL has to do.
        let kill = async {
            let docker = docker_client_instance()
                .await
                .map_err(|error| error.to_string())?;
            docker
                .kill_container(id, None)
                .await
                .map_err(|error| error.to_string())
        };
        run(kill)?.map_err(Error::Docker)
    }

    pub(crate) fn pause(&self) -> Result<(), Error> {
        run(self.container()?.pause())?.map_err(docker)
    }

    pub(crate) fn resume(&self) -> Result<(), Error> {
        run(self.container()?.unpause())?.map_err(docker)
    }

    fn wait(&self, new: bool) -> Result<(), Error> {
        let alive = || match self.is_running() {
            Ok(true) => Ok(()),
            Ok(false) => Err("the container has ended".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let ports = self.port_numbers();
        let nodes: Vec<usize> = (0..self.recipe.nodes()).collect();
        let start = Start {
            ports: &ports,
            nodes: &nodes,
            new,
        };
        let started = start_up::wait(&*self.recipe, &start, alive);
        started.map_err(|reason| Error::DidNotStart {
            kind: self.kind,
            reason,
            log: self.log(),
        })
    }

    /// The end of what the server wrote, which some do to one stream and some to the other.
    fn log(&self) -> String {
        let Ok(container) = self.container() else {
            return String::new();
        };
        let streams = async {
            let mut log = container.stdout_to_vec().await?;
            log.extend(container.stderr_to_vec().await?);
            Ok(log)
        };
        match run(streams).and_then(|log| log.map_err(docker)) {
            Ok(log) => crate::process::last_lines(&log),
            Err(error) => error.to_string(),
        }
    }

    fn container(&self) -> Result<&ContainerAsync<GenericImage>, Error> {
        self.container
            .as_ref()
            .ok_or_else(|| Error::Docker("the container is gone".to_owned()))
    }

    fn port_numbers(&self) -> Vec<u16> {
        self.ports.iter().map(Port::number).collect()
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Some(container) = self.container.take() {
            // If this fails, the watchdog tries the same once more.
            let _ = run(container.rm());
        }
    }
}

fn request(image: Image, published: &[u16], name: String) -> ContainerRequest<GenericImage> {
    let mut request = GenericImage::new(image.name, image.tag)
        .with_cmd(image.arguments)
        .with_container_name(name)
        .with_host_config_modifier(|host| {
            let bindings = host
                .port_bindings
                .iter_mut()
                .flat_map(|ports| ports.values_mut());
            for binding in bindings.flatten().flatten() {
                binding.host_ip = Some("127.0.0.1".to_owned());
            }
        });
    for &port in published {
        request = request.with_mapped_port(port, ContainerPort::Tcp(port));
    }
    for &(variable, value) in image.environment {
        request = request.with_env_var(variable, value);
    }
    request
}

/// Runs a request to the engine to its end. On its own thread, because the caller may be in
/// an asynchronous runtime, where blocking on another one is refused, or dropping one. All requests share one
/// runtime, because they share connections.
fn run<F: Future<Output: Send> + Send>(request: F) -> Result<F::Output, Error> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let run = || {
        let runtime = match RUNTIME.get() {
            Some(runtime) => runtime,
            None => {
                let new = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_all()
                    .build()
                    .doing("starting a runtime for Docker")?;
                RUNTIME.get_or_init(|| new)
            }
        };
        Ok(runtime.block_on(request))
    };
    thread::scope(|scope| scope.spawn(run).join())
        .map_err(|_| Error::Docker("the request panicked".to_owned()))?
}

fn docker(error: testcontainers::TestcontainersError) -> Error {
    Error::Docker(error.to_string())
}
