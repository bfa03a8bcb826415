//! Streams, and the capture of their work.

use std::sync::Arc;

use crate::driver::abi::{
    CAPTURE_INVALIDATED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, Code, Handle, INVALID_HANDLE, INVALID_VALUE,
    NOT_READY, Out,
};
use crate::driver::call::exported;
use crate::driver::machine::{Driver, FIRST_HANDLE};
use crate::driver::state::{Capture, Graph, Stream};

fn create(driver: &mut Driver, to: Out<Handle>, flags: u32) -> Result<(), Code> {
    let device = driver.current()?;
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let handle = driver.handle();
    to.put(handle)?;
    driver.streams.insert(handle, Stream::new(device, flags == 0));
    Ok(())
}

exported! {
    fn cuStreamCreate(driver, to: Out<Handle>, flags: u32) {
        create(driver, to, flags)
    }

    fn cuStreamCreateWithPriority(driver, to: Out<Handle>, flags: u32, _priority: i32) {
        create(driver, to, flags)
    }

    fn cuStreamDestroy_v2(driver, stream: Handle) {
        let stream = driver.stream(stream)?;
        if stream < FIRST_HANDLE {
            return Err(INVALID_HANDLE);
        }
        driver.drain(stream);
        driver.streams.remove(&stream);
        Ok(())
    }

    fn cuStreamSynchronize(driver, stream: Handle) {
        let stream = driver.stream(stream)?;
        if driver.is_capturing(stream) {
            driver.refuse_while_capturing(driver.streams[&stream].device)?;
        }
        driver.finish_stream(stream)
    }

    fn cuStreamQuery(driver, stream: Handle) {
        let stream = driver.stream(stream)?;
        let found = &driver.streams[&stream];
        if found.capture.is_some() {
            return driver.refuse_while_capturing(found.device);
        }
        let (device, done) = (found.device, found.queue.is_empty());
        driver.devices[device].surface()?;
        // Whoever asks again must see an end, so the answer is the last one that says no.
        driver.drain(stream);
        if done { Ok(()) } else { Err(NOT_READY) }
    }

    /// Of the modes only this differs here: nothing of other threads is refused.
    fn cuStreamBeginCapture_v2(driver, stream: Handle, mode: u32) {
        let stream = driver.stream(stream)?;
        let found = driver.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        if stream < FIRST_HANDLE {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if mode > 2 || found.capture.is_some() {
            return Err(INVALID_VALUE);
        }
        found.capture = Some(Capture { work: Vec::new(), invalid: false });
        Ok(())
    }

    fn cuStreamIsCapturing(driver, stream: Handle, status: Out<u32>) {
        let stream = driver.stream(stream)?;
        status.put(match &driver.streams[&stream].capture {
            None => 0,
            Some(capture) => 1 + u32::from(capture.invalid),
        })
    }

    fn cuStreamEndCapture(driver, stream: Handle, to: Out<Handle>) {
        let stream = driver.stream(stream)?;
        let found = driver.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        let device = found.device;
        let capture = found.capture.take().ok_or(CAPTURE_UNMATCHED)?;
        if capture.invalid {
            to.put(0)?;
            return Err(CAPTURE_INVALIDATED);
        }
        let handle = driver.handle();
        to.put(handle)?;
        driver.graphs.insert(handle, Graph { device, work: Arc::from(capture.work) });
        Ok(())
    }
}
