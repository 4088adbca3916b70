//! Takes servers that are written in Java from Maven Central, each as a directory of jars. Debian packages none of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Failure, run};

const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// A server's name and version, and what it is made of: group, artifact and version.
pub(super) struct Jars {
    pub(super) name: &'static str,
    pub(super) artifacts: &'static [(&'static str, &'static str, &'static str)],
}

/// The server, and what writes its log.
pub(super) const KAFKA: Jars = Jars {
    name: "kafka-4.1.0",
    artifacts: &[
        ("org.apache.kafka", "kafka_2.13", "4.1.0"),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
    ],
};

/// What speaks the protocol of Amazon SQS.
pub(super) const ELASTICMQ: Jars = Jars {
    name: "elasticmq-1.6.16",
    artifacts: &[("org.elasticmq", "elasticmq-server_2.13", "1.6.16")],
};

impl Jars {
    pub(super) fn is_there(&self, directory: &Path) -> bool {
        directory.join(self.name).is_dir()
    }

    /// Lets the machine's `mvn` find, download and verify the jars.
    pub(super) fn add(&self, directory: &Path) -> Result<(), Failure> {
        let project = directory.join(format!("{}-project", self.name));
        let partial = directory.join(format!("{}.partial", self.name));
        fs::create_dir_all(&project)?;
        let description = project.join("pom.xml");
        fs::write(&description, self.project())?;
        let mut mvn = Command::new("mvn");
        mvn.args(["-q", "-B", "-f"]).arg(&description).arg(COPY);
        mvn.arg("-DincludeScope=runtime");
        run(mvn.arg(format!("-DoutputDirectory={}", partial.display())))?;
        fs::rename(partial, directory.join(self.name))?;
        fs::remove_dir_all(project)?;
        Ok(())
    }

    fn project(&self) -> String {
        let dependency = |(group, artifact, version): &(&str, &str, &str)| {
            format!(
                "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
                 <version>{version}</version></dependency>"
            )
        };
        let dependencies: String = self.artifacts.iter().map(dependency).collect();
        format!(
            "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">\
             <modelVersion>4.0.0</modelVersion><groupId>test-servers</groupId>\
             <artifactId>{}</artifactId><version>1</version><packaging>pom</packaging>\
             <dependencies>{dependencies}</dependencies></project>",
            self.name
        )
    }
}
