//! What the device is like, from the environment.

use std::path::PathBuf;

/// What the variables `GRADUS_PTX_*` say.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    /// `GRADUS_PTX_DEVICES`: how many devices there are.
    pub(super) devices: usize,
    /// `GRADUS_PTX_CAPABILITY`: the compute capability, such as `8.0`.
    pub(super) capability: (i32, i32),
    /// `GRADUS_PTX_DRIVER_VERSION`: what `cuDriverGetVersion` answers, such as `12080`.
    pub(super) driver_version: i32,
    /// `GRADUS_PTX_CUBLASLT_VERSION`: what `cublasLtGetVersion` answers, such as `120804`.
    pub(super) cublaslt_version: usize,
    /// `GRADUS_PTX_NCCL_VERSION`: what `ncclGetVersion` answers, such as `22304`.
    pub(super) nccl_version: i32,
    /// `GRADUS_PTX_MEMORY`: bytes of memory of a device.
    pub(super) memory: usize,
    /// `GRADUS_PTX_LATE`: the work of a stream is done when somebody waits for it, rather than when it is given.
    pub(super) late: bool,
    /// `GRADUS_PTX_NULL`: launches do nothing, and memory that was never written reads as zeros.
    pub(super) null: bool,
    /// `GRADUS_PTX_DUMP`: the folder for the text of each module that is loaded, named by its hash; none if it is empty.
    pub(super) dump: Option<PathBuf>,
    /// `GRADUS_PTX_STATISTICS`: the file to which a line with the counts is added when the process ends; none if it is empty.
    pub(super) statistics: Option<PathBuf>,
    /// `GRADUS_PTX_FAIL`: calls that fail; see `inject.rs`.
    pub(super) fail: Option<String>,
}

impl Settings {
    /// Reads the variables. What cannot be read is reported and replaced by the default.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Settings {
        let wrong =
            |name: &str, text: &str| eprintln!("gradus-ptx: {name}={text}: not understood; the default is used");
        let number = |name: &str, default: usize| match variable(name) {
            Some(text) => text.parse().unwrap_or_else(|_| {
                wrong(name, &text);
                default
            }),
            None => default,
        };
        let path = |name: &str| variable(name).filter(|text| !text.is_empty()).map(PathBuf::from);
        let capability = match variable("GRADUS_PTX_CAPABILITY") {
            Some(text) => text
                .split_once('.')
                .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
                .unwrap_or_else(|| {
                    wrong("GRADUS_PTX_CAPABILITY", &text);
                    (8, 0)
                }),
            None => (8, 0),
        };
        Settings {
            devices: number("GRADUS_PTX_DEVICES", 1),
            capability,
            driver_version: number("GRADUS_PTX_DRIVER_VERSION", 13_000) as i32,
            cublaslt_version: number("GRADUS_PTX_CUBLASLT_VERSION", 130_000),
            nccl_version: number("GRADUS_PTX_NCCL_VERSION", 22_304) as i32,
            memory: number("GRADUS_PTX_MEMORY", 4 << 30),
            late: number("GRADUS_PTX_LATE", 0) != 0,
            null: number("GRADUS_PTX_NULL", 0) != 0,
            dump: path("GRADUS_PTX_DUMP"),
            statistics: path("GRADUS_PTX_STATISTICS"),
            fail: variable("GRADUS_PTX_FAIL"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_describes_the_device() {
        let default = Settings::read(|_| None);
        assert_eq!((default.devices, default.capability, default.null), (1, (8, 0), false));
        let set = Settings::read(|name| match name {
            "GRADUS_PTX_CAPABILITY" => Some("5.2".into()),
            "GRADUS_PTX_MEMORY" => Some("1000".into()),
            "GRADUS_PTX_DEVICES" => Some("none".into()),
            "GRADUS_PTX_DUMP" => Some("".into()),
            "GRADUS_PTX_STATISTICS" => Some("counts".into()),
            _ => None,
        });
        assert_eq!((set.devices, set.capability, set.memory), (1, (5, 2), 1000));
        assert_eq!((set.dump, set.statistics), (None, Some("counts".into())));
    }
}
