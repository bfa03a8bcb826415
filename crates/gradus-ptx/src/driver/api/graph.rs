//! Graphs: captured work that is launched as one. A graph and one that is ready to be launched are the same here.

use std::sync::Arc;

use crate::driver::abi::{Handle, INVALID_HANDLE, NOT_SUPPORTED, Out};
use crate::driver::call::exported;

exported! {
    fn cuGraphInstantiateWithFlags(driver, to: Out<Handle>, graph: Handle, _flags: u64) {
        let graph = driver.graphs.get(&graph).cloned().ok_or(INVALID_HANDLE)?;
        let handle = driver.handle();
        to.put(handle)?;
        driver.graphs.insert(handle, graph);
        Ok(())
    }

    fn cuGraphUpload(driver, graph: Handle, stream: Handle) {
        driver.stream(stream)?;
        driver.graphs.get(&graph).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuGraphLaunch(driver, graph: Handle, stream: Handle) {
        let stream = driver.stream(stream)?;
        if driver.is_capturing(stream) {
            return Err(NOT_SUPPORTED);
        }
        let work = Arc::clone(&driver.graphs.get(&graph).ok_or(INVALID_HANDLE)?.work);
        driver.counts.graph_launches += 1;
        work.iter().try_for_each(|one| driver.give(stream, one.clone()))
    }

    fn cuGraphDestroy(driver, graph: Handle) {
        driver.graphs.remove(&graph).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuGraphExecDestroy(driver, graph: Handle) {
        driver.graphs.remove(&graph).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuGraphGetNodes(driver, graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        if nodes.is_wanted() {
            return Err(NOT_SUPPORTED);
        }
        count.put(driver.graphs.get(&graph).ok_or(INVALID_HANDLE)?.work.len())
    }
}
