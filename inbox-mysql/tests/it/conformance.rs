//! The conformance suite, over the store on MariaDB. On MySQL: `conformance_mysql.rs`.

use test_servers::Kind;

use crate::common;

conformance_tests::conformance!(common::harness(Kind::Mariadb));
