//! Modules and launches.

use super::alone;
use super::api::*;

const ADD_ONE: &str = "\
.version 7.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 step = 5;
.visible .entry add_one(.param .u64 data, .param .u64 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [data];
    ld.param.u64 %rd2, [count];
    cvta.to.global.u64 %rd3, %rd1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd4, %r4;
    setp.ge.u64 %p1, %rd4, %rd2;
    @%p1 bra DONE;
    mul.wide.u32 %rd5, %r4, 4;
    add.s64 %rd3, %rd3, %rd5;
    ld.global.u32 %r5, [%rd3];
    add.s32 %r5, %r5, 1;
    st.global.u32 [%rd3], %r5;
DONE:
    ret;
}
";

/// [`ADD_ONE`] with this many bytes of shared memory of its own.
fn with_shared(bytes: usize) -> String {
    let declared = format!("{{\n    .shared .align 8 .b8 tile[{bytes}];");
    ADD_ONE.replacen('{', &declared, 1).replace("DONE:", "    st.shared.u32 [tile], %r5;\nDONE:")
}

#[test]
fn what_is_no_ptx_for_this_device_is_refused() {
    let _alone = alone();
    start();
    assert_eq!(load(b"\x7fELF\x02\x01\x01"), Err(209));
    assert_eq!(load(&[0x50, 0xed, 0x55, 0xba, 1]), Err(209));
    assert_eq!(load(&[0xff, 0xfe]), Err(200));
    assert_eq!(load(ADD_ONE.replace("sm_80", "sm_90a").as_bytes()), Err(209));
    let (outcome, log) = load_with_log(&ADD_ONE.replace("ret;", "ret"));
    assert_eq!(outcome, Err(218));
    assert!(log.contains("line 27 of the PTX"), "{log}");
    let (outcome, log) = load_with_log(&with_shared(49_153));
    assert_eq!(outcome, Err(218));
    assert!(log.contains("add_one declares 49153 bytes of shared memory"), "{log}");
    assert!(load(with_shared(49_152).as_bytes()).is_ok());
    let (outcome, log) = load_with_log(ADD_ONE);
    assert_eq!((outcome.is_ok(), log.as_str()), (true, ""));
}

#[test]
fn a_launch_is_checked_before_anything_runs() {
    let _alone = alone();
    start();
    let module = load(ADD_ONE.as_bytes()).unwrap();
    assert_eq!(kernel(module, "add_two"), Err(500));
    let kernel = kernel(module, "add_one").unwrap();
    assert_eq!(launch(kernel, 0, 32, 0, 0, &[0, 0]), Err(1));
    assert_eq!(launch(kernel, 1, 1025, 0, 0, &[0, 0]), Err(1));
    assert_eq!(launch(kernel, 1, 32, 50_000, 0, &[0, 0]), Err(1));
    set_function_attribute(kernel, 8, 60_000).unwrap();
    assert_eq!((function_attribute(kernel, 8), function_attribute(kernel, 0)), (Ok(60_000), Ok(1024)));
    assert_eq!(set_function_attribute(kernel, 8, 200_000), Err(1));
    assert_eq!(occupancy(kernel, 256, 0), Ok(8));
    assert_eq!(occupancy(kernel, 256, 50_000), Ok(3));
    assert_eq!(launch(0x1234, 1, 1, 0, 0, &[0, 0]), Err(400));
    unload(module).unwrap();
    assert_eq!(launch(kernel, 1, 32, 0, 0, &[0, 0]), Err(400));
}

#[test]
fn static_and_dynamic_shared_memory_are_limited_together() {
    let _alone = alone();
    start();
    let kernel = kernel(load(with_shared(40_000).as_bytes()).unwrap(), "add_one").unwrap();
    let address = numbers();
    assert_eq!((function_attribute(kernel, 1), function_attribute(kernel, 8)), (Ok(40_000), Ok(9152)));
    assert_eq!(launch(kernel, 1, 32, 9153, 0, &[address, 10]), Err(1));
    launch(kernel, 1, 1, 9152, 0, &[address, 10]).unwrap();
    assert_eq!(set_function_attribute(kernel, 8, (163 << 10) - 39_999), Err(1));
    set_function_attribute(kernel, 8, (163 << 10) - 40_000).unwrap();
    launch(kernel, 1, 1, (163 << 10) - 40_000, 0, &[address, 10]).unwrap();
    assert_eq!((occupancy(kernel, 256, 0), occupancy(kernel, 256, 50_000)), (Ok(4), Ok(1)));
    synchronize().unwrap();
}

#[test]
fn launches_may_do_nothing() {
    super::with_variables("kernels::launches_may_do_nothing", &[("GRADUS_PTX_NULL", "1")], || {
        start();
        let kernel = kernel(load(ADD_ONE.as_bytes()).unwrap(), "add_one").unwrap();
        let address = alloc(8).unwrap();
        launch(kernel, 1, 32, 0, 0, &[address, 1_000_000]).unwrap();
        assert_eq!((synchronize(), count("launches")), (Ok(()), 1));
        assert_eq!(read(address, 8), Ok(vec![0; 8]));
    });
}

#[test]
fn modules_are_kept_on_request() {
    let folder = std::env::temp_dir().join(format!("gradus-ptx-{}", std::process::id()));
    let path = folder.to_str().unwrap().to_string();
    super::with_variables("kernels::modules_are_kept_on_request", &[("GRADUS_PTX_DUMP", &path)], || {
        start();
        let modules = [load(ADD_ONE.as_bytes()), load(ADD_ONE.as_bytes())].map(Result::unwrap);
        assert_ne!(modules[0], modules[1]);
        let folder = std::path::PathBuf::from(std::env::var("GRADUS_PTX_DUMP").unwrap());
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1);
        assert_eq!(std::fs::read_to_string(&files[0]).unwrap(), ADD_ONE);
        std::fs::remove_dir_all(&folder).unwrap();
    });
}

/// The numbers 0 to 9 on the device.
fn numbers() -> u64 {
    let address = alloc(40).expect("memory");
    let bytes: Vec<u8> = (0..10_u32).flat_map(u32::to_le_bytes).collect();
    write(address, &bytes).expect("a copy");
    address
}

#[test]
fn a_kernel_computes() {
    let _alone = alone();
    start();
    let kernel = kernel(load(ADD_ONE.as_bytes()).unwrap(), "add_one").unwrap();
    let address = numbers();
    launch(kernel, 3, 4, 0, 0, &[address, 10]).unwrap();
    let expected: Vec<u8> = (1..11_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(read(address, 40), Ok(expected));
}

#[test]
fn a_kernel_that_faults_loses_the_context_at_the_next_wait() {
    let _alone = alone();
    start();
    let kernel = kernel(load(ADD_ONE.as_bytes()).unwrap(), "add_one").unwrap();
    let address = numbers();
    launch(kernel, 3, 4, 0, 0, &[address, 11]).unwrap();
    assert!(fault().contains("add_one"), "{}", fault());
    assert!(fault().contains("block (2, 0, 0), thread (2, 0, 0)"), "{}", fault());
    // Later work is dropped, and the first call that waits has the error.
    launch(kernel, 3, 4, 0, 0, &[address, 10]).unwrap();
    assert_eq!(synchronize(), Err(700));
    assert_eq!((launch(kernel, 3, 4, 0, 0, &[address, 10]), free(address)), (Err(700), Err(700)));
    reset();
}
