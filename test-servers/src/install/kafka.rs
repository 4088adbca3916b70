//! Takes Kafka from Maven Central, as a directory of jars. Debian does not package it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Failure, run};

const VERSION: &str = "4.1.0";
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// The server, and what writes its log.
const PROJECT: &str = r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>test-servers</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>VERSION</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
"#;

pub(super) fn is_there(directory: &Path) -> bool {
    place(directory).is_dir()
}

/// Lets the machine's `mvn` find, download and verify the jars.
pub(super) fn add(directory: &Path) -> Result<(), Failure> {
    let project = directory.join("kafka-project");
    let partial = directory.join(format!("kafka-{VERSION}.partial"));
    fs::create_dir_all(&project)?;
    let description = project.join("pom.xml");
    fs::write(&description, PROJECT.replace("VERSION", VERSION))?;
    let mut mvn = Command::new("mvn");
    mvn.args(["-q", "-B", "-f"]).arg(&description).arg(COPY);
    mvn.arg("-DincludeScope=runtime");
    run(mvn.arg(format!("-DoutputDirectory={}", partial.display())))?;
    fs::rename(partial, place(directory))?;
    fs::remove_dir_all(project)?;
    Ok(())
}

fn place(directory: &Path) -> PathBuf {
    directory.join(format!("kafka-{VERSION}"))
}
