//! Calls that fail on request, and contexts that are lost.

use super::alone;
use super::api::*;

#[test]
fn the_named_call_fails_and_does_nothing() {
    let _alone = alone();
    start();
    fail("cuMemAllocAsync:2=2").unwrap();
    let used = count("bytes_used");
    let outcomes = [1, 2, 3].map(|_| alloc_async(8, 0).map(drop));
    assert_eq!(outcomes, [Ok(()), Err(2), Ok(())]);
    assert_eq!(count("bytes_used"), used + 16);
    assert_eq!(fail("cuMemAllocAsync=2"), Err(1));
    fail("").unwrap();
    assert!(synchronize().is_ok());
}

#[test]
fn a_lost_device_answers_every_call_with_the_same_error() {
    let _alone = alone();
    start();
    let address = alloc(8).unwrap();
    fail("cuStreamSynchronize:1=719").unwrap();
    assert_eq!(stream_synchronize(0), Err(719));
    fail("").unwrap();
    assert_eq!((alloc(8), free(address), synchronize()), (Err(719), Err(719), Err(719)));
    assert_eq!(start_with(0), Err(719));
    reset();
    start();
    assert!(alloc(8).is_ok());
}

#[test]
fn nothing_works_before_cu_init_or_without_a_context() {
    super::with_variables("failures::nothing_works_before_cu_init_or_without_a_context", &[], || {
        assert!(version().is_ok());
        assert_eq!((devices(), alloc(8)), (Err(3), Err(3)));
        init().unwrap();
        assert_eq!((devices(), alloc(8)), (Ok(1), Err(201)));
        assert_eq!(start_with(1), Err(101));
        start();
        assert!(alloc(8).is_ok());
        let outcome = std::thread::spawn(|| alloc(8)).join().unwrap();
        assert_eq!(outcome, Err(201), "a context is current on one thread only");
    });
}

#[test]
fn null_where_something_must_be_is_an_error() {
    start();
    let _alone = alone();
    let address = alloc(8).unwrap();
    assert_eq!(write_async(address, std::ptr::null(), 8, 0), Err(1));
    assert!(write_async(address, std::ptr::null(), 0, 0).is_ok());
}
