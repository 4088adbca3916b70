//! Parts of the suite.

/// Some cases of the suite, as tests of the same names.
macro_rules! part {
    ($broker:ty, $make:expr; $($group:ident { $($name:ident,)* })*) => {
        static BROKERS: source_tests::Brokers = source_tests::Brokers::new();

        async fn make() -> Result<Option<$broker>, source_tests::Failure> {
            $make
        }

        $(
            mod $group {
                $(
                    #[test]
                    fn $name() -> Result<(), source_tests::TestFailure> {
                        source_tests::test(
                            &super::BROKERS,
                            super::make,
                            concat!(module_path!(), "::", stringify!($name)),
                            concat!(stringify!($group), "::", stringify!($name)),
                        )
                    }
                )*
            }
        )*
    };
}
