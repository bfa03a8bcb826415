//! Devices that are described by the environment.

use super::api::*;

#[test]
fn there_may_be_no_device() {
    super::with_variables("settings::there_may_be_no_device", &[("GRADUS_PTX_DEVICES", "0")], || {
        assert_eq!(init(), Err(100));
    });
}

#[test]
fn the_driver_may_be_old_and_the_device_too() {
    let variables = [("GRADUS_PTX_DRIVER_VERSION", "11040"), ("GRADUS_PTX_CAPABILITY", "5.2")];
    super::with_variables("settings::the_driver_may_be_old_and_the_device_too", &variables, || {
        start();
        assert_eq!((version(), attribute(75), attribute(76)), (Ok(11_040), Ok(5), Ok(2)));
    });
}

#[test]
fn failures_may_be_planned_before_the_program_starts() {
    let variables = [("GRADUS_PTX_FAIL", "cuInit:1+=999")];
    super::with_variables("settings::failures_may_be_planned_before_the_program_starts", &variables, || {
        assert_eq!((init(), init()), (Err(999), Err(999)));
    });
}
