//! Events.

use std::time::Instant;

use crate::driver::abi::{CAPTURED_EVENT, Code, Handle, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, Out};
use crate::driver::call::exported;
use crate::driver::machine::Driver;
use crate::driver::state::Event;
use crate::driver::work::Work;

/// An event that was not recorded in a graph.
fn event_of(driver: &Driver, event: Handle) -> Result<&Event, Code> {
    let found = driver.events.get(&event).ok_or(INVALID_HANDLE)?;
    driver.devices[found.device].lost.map_or(Ok(()), Err)?;
    if found.captured { Err(CAPTURED_EVENT) } else { Ok(found) }
}

fn elapsed(driver: &mut Driver, to: Out<f32>, start: Handle, end: Handle) -> Result<(), Code> {
    let (start, end) = (event_of(driver, start)?, event_of(driver, end)?);
    let both = [start, end];
    if both.iter().any(|event| !event.timed || event.given.0 == 0) {
        return Err(INVALID_HANDLE);
    }
    if both.iter().any(|event| event.reached.0 < event.given.0) {
        return Err(NOT_READY);
    }
    let (start, end) = (start.reached.1, end.reached.1);
    let seconds =
        end.saturating_duration_since(start).as_secs_f64() - start.saturating_duration_since(end).as_secs_f64();
    to.put((seconds * 1e3) as f32)
}

exported! {
    fn cuEventCreate(driver, to: Out<Handle>, flags: u32) {
        let device = driver.current()?;
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        let handle = driver.handle();
        to.put(handle)?;
        let never = (0, Instant::now());
        let event = Event { device, timed: flags & 2 == 0, given: (0, 0), reached: never, captured: false };
        driver.events.insert(handle, event);
        Ok(())
    }

    fn cuEventRecord(driver, event: Handle, stream: Handle) {
        let stream = driver.stream(stream)?;
        let captured = driver.is_capturing(stream);
        let found = driver.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        found.captured = captured;
        found.given = (found.given.0 + 1, stream);
        let record = found.given.0;
        if captured {
            return Ok(());
        }
        driver.give(stream, Work::Record { event, record })
    }

    fn cuEventQuery(driver, event: Handle) {
        let found = event_of(driver, event)?;
        let (device, (given, stream), reached) = (found.device, found.given, found.reached.0);
        driver.devices[device].surface()?;
        // As with a stream, the next answer is yes.
        driver.drain(stream);
        if reached < given { Err(NOT_READY) } else { Ok(()) }
    }

    fn cuEventSynchronize(driver, event: Handle) {
        let found = event_of(driver, event)?;
        let (device, record) = (found.device, found.given.0);
        driver.wait_for(event, record);
        let is_held_up = driver.events.get(&event).is_some_and(|event| event.reached.0 < record);
        driver.refuse_endless(is_held_up, "cuEventSynchronize")?;
        driver.devices[device].surface()
    }

    fn cuEventDestroy_v2(driver, event: Handle) {
        driver.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuEventElapsedTime(driver, to: Out<f32>, start: Handle, end: Handle) {
        elapsed(driver, to, start, end)
    }

    fn cuEventElapsedTime_v2(driver, to: Out<f32>, start: Handle, end: Handle) {
        elapsed(driver, to, start, end)
    }

    /// Within one capture nothing is to be done, since its work stays in order. A capture does not spread to other streams.
    fn cuStreamWaitEvent(driver, stream: Handle, event: Handle, _flags: u32) {
        let stream = driver.stream(stream)?;
        let found = driver.events.get(&event).ok_or(INVALID_HANDLE)?;
        let (record, recorded_in) = found.given;
        match (driver.is_capturing(stream), found.captured) {
            (true, true) if recorded_in == stream => Ok(()),
            (true, _) | (_, true) => Err(NOT_SUPPORTED),
            _ if record == 0 => Ok(()),
            _ => driver.give(stream, Work::Wait { event, record }),
        }
    }
}
