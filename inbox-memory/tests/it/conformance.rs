//! The conformance suite, over the memory store.

conformance_tests::conformance!(conformance_tests::memory_harness());
