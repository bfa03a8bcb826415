//! Captured work.

use super::alone;
use super::api::*;

#[test]
fn captured_work_is_done_at_each_launch_and_not_before() {
    let _alone = alone();
    start();
    let (stream, from, to) = (stream(), alloc(4).unwrap(), alloc(4).unwrap());
    fill_async(from, 1, 1, stream).unwrap();
    fill_async(to, 0, 1, stream).unwrap();
    begin_capture(stream).unwrap();
    copy_async(to, from, 4, stream).unwrap();
    let graph = end_capture(stream).unwrap();
    assert_eq!(read(to, 4), Ok(vec![0; 4]));
    let ready = instantiate(graph).unwrap();
    graph_destroy(graph).unwrap();
    for value in [1, 2] {
        fill_async(from, value, 1, stream).unwrap();
        graph_launch(ready, stream).unwrap();
        assert_eq!(read(to, 4), Ok(vec![value as u8, 0, 0, 0]));
    }
    graph_exec_destroy(ready).unwrap();
    assert_eq!(graph_launch(ready, stream), Err(400));
}

#[test]
fn waiting_ends_a_capture_without_a_graph() {
    let _alone = alone();
    start();
    let (stream, address) = (stream(), alloc(4).unwrap());
    type Wait = fn(usize, u64) -> Outcome<()>;
    let waits: [Wait; 4] = [
        |stream, _| stream_synchronize(stream),
        |stream, _| stream_query(stream),
        |_, _| synchronize(),
        |_, address| read(address, 4).map(drop),
    ];
    for wait in waits {
        begin_capture(stream).unwrap();
        fill_async(address, 1, 1, stream).unwrap();
        assert_eq!(wait(stream, address), Err(900));
        assert_eq!(fill_async(address, 1, 1, stream), Err(901));
        assert_eq!(end_capture(stream), Err(901));
    }
    assert_eq!(end_capture(stream), Err(903));
    assert_eq!((begin_capture(0), alloc_async(4, stream).map(drop)), (Err(900), Ok(())));
    begin_capture(stream).unwrap();
    assert_eq!(alloc_async(4, stream), Err(801));
    let event = event(0);
    event_record(event, stream).unwrap();
    assert_eq!(event_query(event), Err(907));
    assert!(end_capture(stream).is_ok());
}
