//! The conformance suite, over the store on MariaDB. On MySQL: `mysql.rs`.

mod common;

use test_servers::Kind;

conformance_tests::conformance!(common::harness(Kind::Mariadb));
