//! The conformance suite that every inbox store passes, ours or yours.
