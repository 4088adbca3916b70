//! An inbox store in memory: the reference for all others, and for tests.
