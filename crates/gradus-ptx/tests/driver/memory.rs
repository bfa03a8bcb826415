//! Memory, copies, streams and events.

use super::alone;
use super::api::*;

#[test]
fn the_device_says_what_it_is() {
    start();
    assert_eq!(devices(), Ok(1));
    assert_eq!(device_name(), "Gradus PTX interpreter");
    let attributes = [75, 76, 10, 1, 115].map(|which| attribute(which).unwrap());
    assert_eq!(attributes, [8, 0, 32, 1024, 1]);
    assert_eq!(attribute(-1), Err(1));
    assert_eq!(error_name(700).as_deref(), Some("CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_eq!(error_name(12345), None);
    assert!(version().unwrap() >= 12_000);
}

#[test]
fn bytes_come_back() {
    let _alone = alone();
    start();
    let address = alloc(10).unwrap();
    write(address, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap();
    assert_eq!(read(address + 2, 3), Ok(vec![3, 4, 5]));
    let other = alloc_async(10, 0).unwrap();
    copy_async(other, address + 1, 9, 0).unwrap();
    assert_eq!(read(other, 9), Ok(vec![2, 3, 4, 5, 6, 7, 8, 9, 10]));
    free(address).unwrap();
    free_async(other, 0).unwrap();
    assert_eq!(free(address), Err(1), "freed twice");
    assert_eq!(alloc(0), Err(1));
}

#[test]
fn a_copy_past_the_end_or_of_unwritten_bytes_is_an_error_that_loses_the_context() {
    let _alone = alone();
    for (written, wanted, words) in [(8, 9, "9 bytes"), (7, 8, "never written")] {
        reset();
        start();
        let address = alloc(8).unwrap();
        write(address, &vec![0; written]).unwrap();
        assert!(read(address, wanted).is_err());
        assert!(fault().contains(words), "{}", fault());
        assert!(alloc(8).is_err());
    }
    reset();
}

#[test]
fn memory_is_limited_and_given_back() {
    super::with_variables("memory::memory_is_limited_and_given_back", &[("GRADUS_PTX_MEMORY", "1000")], || {
        start();
        let address = alloc(600).unwrap();
        assert_eq!((memory_info(), alloc(401)), (Ok((400, 1000)), Err(2)));
        free(address).unwrap();
        let address = alloc(1000).unwrap();
        free_async(address, 0).unwrap();
        assert!(alloc_async(1000, 0).is_ok());
        assert_eq!(count("bytes_most"), 1000);
    });
}

#[test]
fn work_of_a_stream_is_done_when_somebody_waits() {
    super::with_variables("memory::work_of_a_stream_is_done_when_somebody_waits", &[("GRADUS_PTX_LATE", "1")], || {
        start();
        let (first, second) = (stream(), stream());
        let (address, pinned) = (alloc(4).unwrap(), alloc_pinned(4).unwrap());
        fill_async(address, 7, 1, first).unwrap();
        read_async(pinned, address, 4, first).unwrap();
        // SAFETY: four bytes of pinned memory, zeros at first; no work that uses them is being done.
        let seen = || unsafe { pinned.cast::<u32>().read() };
        assert_eq!((seen(), stream_query(first), seen()), (0, Err(600), 7));
        // Another stream is not waited for, unless an event says so.
        fill_async(address, 8, 1, first).unwrap();
        read_async(pinned, address, 4, second).unwrap();
        assert_eq!((stream_synchronize(second), seen()), (Ok(()), 7));
        let event = event(0);
        event_record(event, first).unwrap();
        assert_eq!(event_query(event), Err(600));
        fill_async(address, 9, 1, first).unwrap();
        event_record(event, first).unwrap();
        stream_wait(second, event).unwrap();
        read_async(pinned, address, 4, second).unwrap();
        assert_eq!((stream_synchronize(second), seen()), (Ok(()), 9));
        free_pinned(pinned).unwrap();
        stream_destroy(second).unwrap();
    });
}

#[test]
fn a_copy_from_pinned_memory_reads_it_when_it_is_done() {
    super::with_variables(
        "memory::a_copy_from_pinned_memory_reads_it_when_it_is_done",
        &[("GRADUS_PTX_LATE", "1")],
        || {
            start();
            let (stream, address, pinned) = (stream(), alloc(8).unwrap(), alloc_pinned(4).unwrap());
            let mut own = [1, 1, 1, 1];
            write_async(address, pinned, 4, stream).unwrap();
            write_async(address + 4, own.as_ptr(), 4, stream).unwrap();
            own.fill(2);
            // SAFETY: four bytes of pinned memory; the copy from them is not being done.
            unsafe { pinned.write_bytes(2, 4) };
            stream_synchronize(stream).unwrap();
            assert_eq!(read(address, 8), Ok(vec![2, 2, 2, 2, 1, 1, 1, 1]), "{own:?}");
        },
    );
}

#[test]
fn events_measure_time() {
    let _alone = alone();
    start();
    let (stream, first, second, untimed) = (stream(), event(0), event(0), event(2));
    assert_eq!(event_elapsed(first, second), Err(400), "never recorded");
    event_record(first, stream).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(3));
    event_record(second, stream).unwrap();
    event_record(untimed, stream).unwrap();
    event_synchronize(second).unwrap();
    let elapsed = event_elapsed(first, second).unwrap();
    assert!((3.0..60_000.0).contains(&elapsed), "{elapsed}");
    assert!(event_elapsed(second, first).unwrap() < 0.0);
    assert_eq!(event_elapsed(first, untimed), Err(400));
    stream_destroy(stream).unwrap();
    assert_eq!(stream_synchronize(stream), Err(400));
}
