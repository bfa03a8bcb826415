//! Checks the metadata of a Parquet file before the crate `parquet` reads it: that crate trusts the depth of a schema, its
//! numbers of children and the sizes of pages, with which a damaged file could end the process.
//!
//! The format: <https://parquet.apache.org/docs/file-format/metadata/>, in Thrift's compact protocol.

/// The deepest nesting of a schema, and of structs in the metadata.
const MOST_DEPTH: usize = 64;

/// The length of the footer, and the magic bytes.
const TAIL: usize = 8;

/// The most bytes to which gzip expands one; Snappy and LZ4 expand less.
const MOST_EXPANSION: u64 = 1032;

/// What the header of a compressed page may add.
const SLACK: u64 = 1024;

type Checked<T> = Result<T, &'static str>;

/// The types of Thrift's compact protocol.
mod kind {
    pub(super) const TRUE: u8 = 1;
    pub(super) const FALSE: u8 = 2;
    pub(super) const BYTE: u8 = 3;
    pub(super) const I16: u8 = 4;
    pub(super) const I32: u8 = 5;
    pub(super) const I64: u8 = 6;
    pub(super) const DOUBLE: u8 = 7;
    pub(super) const BINARY: u8 = 8;
    pub(super) const LIST: u8 = 9;
    pub(super) const SET: u8 = 10;
    pub(super) const MAP: u8 = 11;
    pub(super) const STRUCT: u8 = 12;
}

/// Checks a whole file. What is not checked here is bounded by the file's length.
pub(super) fn check(file: &[u8]) -> Checked<()> {
    let (rest, tail) = file.split_at_checked(file.len().saturating_sub(TAIL)).ok_or("it is cut off")?;
    let tail = <[u8; TAIL]>::try_from(tail).map_err(|_| "it is cut off")?;
    let [a, b, c, d, magic @ ..] = tail;
    if &magic != b"PAR1" {
        return Err("it does not end as a Parquet file does, or it is encrypted");
    }
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let at = rest.len().checked_sub(length).ok_or("it is shorter than its footer")?;
    let mut children = Vec::new();
    let mut chunks = Vec::new();
    let mut footer = Reader { bytes: &rest[at..] };
    footer.fields(0, &mut |id, kind, r, depth| match (id, kind) {
        (2, kind::LIST) => r.list(depth, &mut |kind, r, depth| {
            let mut count = 0;
            expect(kind, kind::STRUCT)?;
            r.fields(depth, &mut |id, kind, r, depth| match (id, kind) {
                (5, kind::I32) => r.number().map(|n| count = n),
                _ => r.skip(kind, depth),
            })?;
            // At most one for each byte of the footer.
            children.push(count);
            Ok(())
        }),
        (4, kind::LIST) => r.list(depth, &mut |kind, r, depth| {
            expect(kind, kind::STRUCT)?;
            r.fields(depth, &mut |id, kind, r, depth| match (id, kind) {
                (1, kind::LIST) => r.list(depth, &mut |kind, r, depth| {
                    expect(kind, kind::STRUCT)?;
                    r.fields(depth, &mut |id, kind, r, depth| match (id, kind) {
                        (3, kind::STRUCT) => {
                            chunks.push(Chunk::read(r, depth)?);
                            Ok(())
                        }
                        _ => r.skip(kind, depth),
                    })
                }),
                _ => r.skip(kind, depth),
            })
        }),
        _ => r.skip(kind, depth),
    })?;
    check_tree(&children)?;
    chunks.iter().try_for_each(|chunk| chunk.check_pages(file))
}

/// Checks the numbers of children of a schema, which are given in the order of a walk through the tree.
fn check_tree(children: &[i64]) -> Checked<()> {
    // The nodes that are still missing at each level.
    let mut open: Vec<i64> = Vec::new();
    for (i, &count) in children.iter().enumerate() {
        if !(0..=(children.len() - 1 - i) as i64).contains(&count) {
            return Err("a group of its schema has more columns than the schema");
        }
        match open.last_mut() {
            Some(left) => *left -= 1,
            None if i > 0 => return Err("its schema has columns outside of the table"),
            None => {}
        }
        if count > 0 {
            open.push(count);
        }
        if open.len() > MOST_DEPTH {
            return Err("its schema is nested too deep");
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    if open.is_empty() { Ok(()) } else { Err("its schema lacks columns") }
}

fn expect(kind: u8, wanted: u8) -> Checked<()> {
    if kind == wanted { Ok(()) } else { Err("its metadata is damaged") }
}

/// The pages of a column in a group of rows.
#[derive(Default)]
struct Chunk {
    codec: i64,
    length: i64,
    data: i64,
    dictionary: i64,
}

impl Chunk {
    fn read(r: &mut Reader<'_>, depth: usize) -> Checked<Chunk> {
        let mut chunk = Chunk::default();
        r.fields(depth, &mut |id, kind, r, depth| match (id, kind) {
            (4, kind::I32) => r.number().map(|n| chunk.codec = n),
            (7, kind::I64) => r.number().map(|n| chunk.length = n),
            (9, kind::I64) => r.number().map(|n| chunk.data = n),
            (11, kind::I64) => r.number().map(|n| chunk.dictionary = n),
            _ => r.skip(kind, depth),
        })?;
        Ok(chunk)
    }

    /// Checks that no page says that it is larger than its bytes can become.
    fn check_pages(&self, file: &[u8]) -> Checked<()> {
        let outside = "the pages of a column lie outside of it";
        // A column without rows may have a dictionary and no page of data.
        let first = [self.dictionary, self.data].into_iter().filter(|&at| at > 0).min();
        let Some(start) = first else { return if self.length == 0 { Ok(()) } else { Err(outside) } };
        let start = usize::try_from(start).map_err(|_| outside)?;
        let length = usize::try_from(self.length).map_err(|_| outside)?;
        let end = start.checked_add(length).filter(|&end| end <= file.len()).ok_or(outside)?;
        let mut r = Reader { bytes: &file[start..end] };
        while !r.bytes.is_empty() {
            let (mut large, mut small) = (0, 0);
            r.fields(0, &mut |id, kind, r, depth| match (id, kind) {
                (2, kind::I32) => r.number().map(|n| large = n),
                (3, kind::I32) => r.number().map(|n| small = n),
                _ => r.skip(kind, depth),
            })?;
            let large = u64::try_from(large).map_err(|_| "a page has a negative size")?;
            let small = usize::try_from(small).map_err(|_| "a page has a negative size")?;
            let most = if self.codec == 0 { small as u64 } else { small as u64 * MOST_EXPANSION + SLACK };
            if large > most {
                return Err("a page of it says that it is larger than its bytes can become");
            }
            r.bytes = r.bytes.get(small..).ok_or(outside)?;
        }
        Ok(())
    }
}

/// Reads Thrift's compact protocol.
struct Reader<'a> {
    bytes: &'a [u8],
}

/// Reads a field of this number and type, at this depth.
type Field<'f> = &'f mut dyn FnMut(i64, u8, &mut Reader<'_>, usize) -> Checked<()>;

/// Reads an element of this type, at this depth.
type Element<'f> = &'f mut dyn FnMut(u8, &mut Reader<'_>, usize) -> Checked<()>;

impl Reader<'_> {
    fn byte(&mut self) -> Checked<u8> {
        let (&first, rest) = self.bytes.split_first().ok_or("its metadata is cut off")?;
        self.bytes = rest;
        Ok(first)
    }

    fn varint(&mut self) -> Checked<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number of its metadata is too long")
    }

    /// A signed number, in zigzag form.
    fn number(&mut self) -> Checked<i64> {
        let n = self.varint()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    fn pass(&mut self, count: u64) -> Checked<()> {
        let count = usize::try_from(count).map_err(|_| "its metadata is cut off")?;
        self.bytes = self.bytes.get(count..).ok_or("its metadata is cut off")?;
        Ok(())
    }

    /// Calls a function for each field of a struct.
    fn fields(&mut self, depth: usize, each: Field<'_>) -> Checked<()> {
        if depth > MOST_DEPTH {
            return Err("its metadata is nested too deep");
        }
        let mut id = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            id = if head >> 4 == 0 { self.number()? } else { id.saturating_add(i64::from(head >> 4)) };
            each(id, head & 0xf, self, depth + 1)?;
        }
    }

    /// Calls a function for each element of a list.
    fn list(&mut self, depth: usize, each: Element<'_>) -> Checked<()> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        self.holds(count)?;
        (0..count).try_for_each(|_| each(head & 0xf, self, depth))
    }

    /// Each element has at least one byte.
    fn holds(&self, count: u64) -> Checked<()> {
        if count <= self.bytes.len() as u64 { Ok(()) } else { Err("a list of its metadata is longer than it") }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Checked<()> {
        match kind {
            // A field's type is its value.
            kind::TRUE | kind::FALSE => Ok(()),
            kind::BYTE => self.byte().map(drop),
            kind::I16 | kind::I32 | kind::I64 => self.varint().map(drop),
            kind::DOUBLE => self.pass(8),
            kind::BINARY => {
                let length = self.varint()?;
                self.pass(length)
            }
            kind::LIST | kind::SET => self.list(depth, &mut |kind, r, depth| r.element(kind, depth)),
            kind::MAP => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                self.holds(count)?;
                let kinds = self.byte()?;
                (0..count).try_for_each(|_| {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 0xf, depth)
                })
            }
            kind::STRUCT => self.fields(depth, &mut |_, kind, r, depth| r.skip(kind, depth)),
            _ => Err("its metadata is damaged"),
        }
    }

    /// Skips an element of a list or a map, where booleans take a byte.
    fn element(&mut self, kind: u8, depth: usize) -> Checked<()> {
        match kind {
            kind::TRUE | kind::FALSE => self.byte().map(drop),
            // A list in a list: the depth counts structs otherwise.
            kind::LIST | kind::SET | kind::MAP if depth >= MOST_DEPTH => Err("its metadata is nested too deep"),
            _ => self.skip(kind, depth + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check_tree;

    #[test]
    fn a_schema_is_a_tree() {
        for whole in [&[2, 0, 0][..], &[1, 2, 0, 0], &[0], &[]] {
            assert_eq!(check_tree(whole), Ok(()), "{whole:?}");
        }
        for broken in [&[2, 0][..], &[0, 0], &[-1], &[1, 0, 0], &[1_000_000_000, 0]] {
            assert!(check_tree(broken).is_err(), "{broken:?}");
        }
        let deep: Vec<i64> = (0..100).map(|i| i64::from(i < 99)).collect();
        assert_eq!(check_tree(&deep), Err("its schema is nested too deep"));
    }
}
