//! The suite passes on the brokers in memory.

mod queue {
    use source_tests::{MemoryBroker, MemoryKind};

    source_tests::cases!(async || Ok(Some(MemoryBroker::new(MemoryKind::Queue))));
}

mod log {
    use source_tests::{MemoryBroker, MemoryKind};

    source_tests::cases!(async || Ok(Some(MemoryBroker::new(MemoryKind::Log))));
}
