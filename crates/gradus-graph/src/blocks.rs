//! [`Blocks`]: the memory of temporary values, which all plans of a step share, since only one of them runs at a time.

use gradus_tensor::ops::Block;
use gradus_tensor::{Device, Result};

/// Blocks of memory on one device, each at least as large as any plan that has run needs it.
#[derive(Default)]
pub(crate) struct Blocks {
    device: Option<Device>,
    /// A block and its size in bytes.
    blocks: Vec<(Block, usize)>,
}

impl Blocks {
    /// Blocks of at least these sizes, in this order. Allocates what is missing, at most these sizes.
    #[track_caller]
    pub(crate) fn of(&mut self, device: &Device, sizes: &[usize]) -> Result<impl Iterator<Item = &mut Block>> {
        if self.device.as_ref() != Some(device) {
            self.blocks.clear();
            self.device = Some(device.clone());
        }
        for (i, &bytes) in sizes.iter().enumerate() {
            if self.blocks.get(i).is_some_and(|(_, has)| *has >= bytes) {
                continue;
            }
            if i < self.blocks.len() {
                // The old block is freed first. If memory runs out, the others are allocated again by the next replay.
                self.blocks.truncate(i);
            }
            self.blocks.push((Block::new(device, bytes)?, bytes));
        }
        Ok(self.blocks.iter_mut().take(sizes.len()).map(|(block, _)| block))
    }
}
