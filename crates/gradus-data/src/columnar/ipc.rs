//! [`ArrowFile`]: the groups of rows of an Arrow file in memory.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, Footer, root_as_footer, root_as_message};
use arrow_schema::{ArrowError, SchemaRef};

/// What begins an Arrow file, and ends it after the length of the footer.
const MAGIC: &[u8] = b"ARROW1";

/// The length of the footer, and the magic bytes.
const TAIL: usize = 10;

/// The most bytes to which LZ4 expands one.
const MOST_EXPANSION: u64 = 255;

/// An Arrow file, of which the groups of rows are read one by one.
pub(super) struct ArrowFile {
    bytes: Buffer,
    decoder: FileDecoder,
    pub(super) schema: SchemaRef,
    left: std::vec::IntoIter<Block>,
}

fn bad(what: &str) -> ArrowError {
    ArrowError::ParseError(what.to_owned())
}

impl ArrowFile {
    /// Reads the footer and the dictionaries.
    pub(super) fn new(bytes: Vec<u8>) -> Result<ArrowFile, ArrowError> {
        if !bytes.starts_with(MAGIC) {
            return Err(bad("it does not begin as an Arrow file does; a stream of Arrow messages is not read"));
        }
        let bytes = Buffer::from_vec(bytes);
        let (before, tail) = bytes.split_at(bytes.len().saturating_sub(TAIL));
        let tail = <[u8; TAIL]>::try_from(tail).map_err(|_| bad("it is cut off"))?;
        let length = read_footer_length(tail)?;
        let at = before.len().checked_sub(length).ok_or_else(|| bad("it is shorter than its footer"))?;
        let footer: Footer<'_> = root_as_footer(&before[at..]).map_err(|e| bad(&e.to_string()))?;
        let schema = footer.schema().ok_or_else(|| bad("its footer has no schema"))?;
        let schema: SchemaRef = Arc::new(try_fb_to_schema(schema)?);
        let mut decoder = FileDecoder::new(schema.clone(), footer.version());
        for block in footer.dictionaries().iter().flatten() {
            decoder.read_dictionary(block, &part(&bytes, block)?)?;
        }
        let blocks: Vec<Block> = footer.recordBatches().iter().flatten().copied().collect();
        Ok(ArrowFile { bytes, decoder, schema, left: blocks.into_iter() })
    }
}

impl Iterator for ArrowFile {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let block = self.left.next()?;
        let part = match part(&self.bytes, &block) {
            Ok(part) => part,
            Err(e) => return Some(Err(e)),
        };
        self.decoder.read_record_batch(&block, &part).transpose()
    }
}

/// The bytes of a block, after a check of the lengths in it: what they say is allocated before it is read.
fn part(bytes: &Buffer, block: &Block) -> Result<Buffer, ArrowError> {
    let number = |n: i64| usize::try_from(n).map_err(|_| bad("a block of it has a negative size"));
    let (start, head) = (number(block.offset())?, number(i64::from(block.metaDataLength()))?);
    let whole = head.checked_add(number(block.bodyLength())?);
    let part = match whole {
        Some(whole) if start.checked_add(whole).is_some_and(|end| end <= bytes.len()) => {
            bytes.slice_with_length(start, whole)
        }
        _ => return Err(bad("a block lies behind its end")),
    };
    // The length of the message comes first, since 2019 behind a marker.
    let message = part.get(..head).ok_or_else(|| bad("a block is cut off"))?;
    let message = message.strip_prefix(&[0xff; 4]).unwrap_or(message).get(4..);
    let message = root_as_message(message.unwrap_or_default()).map_err(|e| bad(&e.to_string()))?;
    let batch = message
        .header_as_record_batch()
        .or_else(|| message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data()));
    let Some(batch) = batch else { return Ok(part) };
    if batch.compression().is_some() {
        for buffer in batch.buffers().iter().flatten() {
            let (at, length) = (number(buffer.offset())?, number(buffer.length())?);
            let body = part.get(head..).and_then(|body| body.get(at..at.checked_add(length)?));
            let body = body.ok_or_else(|| bad("a buffer lies behind its block"))?;
            let Some(first) = body.first_chunk::<8>() else { continue };
            // -1 stands for a buffer that is not compressed.
            let size = i64::from_le_bytes(*first);
            let most = (length as u64).saturating_mul(MOST_EXPANSION);
            if size < -1 || u64::try_from(size).is_ok_and(|size| size > most) {
                return Err(bad("a buffer claims to expand to more than LZ4 can"));
            }
        }
    }
    Ok(part)
}
