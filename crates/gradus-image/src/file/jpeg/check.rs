//! Checks that the coded data of a JPEG file are complete. Decoders silently fill in missing data, even in the middle
//! of a file.

use super::super::samples::{Unreadable, zeros};
use super::baseline::Decoding;
use super::blocks::{Broken, Checking, Coding, Component, Scan, walk_units};
use super::colour::Planes;
use super::huffman::{Fault, Table, next_marker};
use crate::raster::Section;

/// The description of the picture, which precedes the first scan.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) is_progressive: bool,
    pub(super) components: Vec<Component>,
    /// The number of units of all channels, horizontally and vertically.
    pub(super) units: [usize; 2],
    /// Whether a decoder must hold all coefficients at once, instead of some rows of them.
    pub(super) is_buffered: bool,
}

/// A JPEG file that has been read up to the start of a segment.
#[derive(Debug)]
pub(super) struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
    tables: [[Option<Table>; 4]; 2],
    quantization: [Option<[u16; 64]>; 4],
    interval: usize,
    /// Whether the first scan has been found.
    started: bool,
    /// What the file says of its colours: whether it is a JFIF file, and the transform that Adobe's segment names.
    jfif: bool,
    adobe: Option<u8>,
    /// The contents of the Exif segment.
    exif: Option<&'a [u8]>,
}

fn cut_off() -> Unreadable {
    Unreadable::Bad("is cut off: its end is missing".into())
}

fn damaged(what: &str) -> Unreadable {
    Unreadable::Bad(format!("is damaged: {what}"))
}

impl<'a> Segments<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Segments {
            bytes,
            at: 2,
            tables: Default::default(),
            quantization: [None; 4],
            interval: 0,
            started: false,
            jfif: false,
            adobe: None,
            exif: None,
        }
    }

    /// Reads up to the first scan.
    pub(super) fn start(mut self) -> Result<Start<'a>, Unreadable> {
        let mut frame = None;
        let scan = self.next_scan(&mut frame)?;
        self.started = true;
        let (Some(scan), Some(mut frame)) = (scan, frame) else { return Err(damaged("it has no picture")) };
        let separate = scan.channels.len() < frame.components.len();
        frame.is_buffered = frame.is_progressive || separate;
        // The decoder would misinterpret such files.
        let first = frame.components[0].sampling;
        let fits = |s: [usize; 2]| first[0].is_multiple_of(s[0]) && first[1].is_multiple_of(s[1]);
        if !frame.components.iter().all(|c| fits(c.sampling)) {
            return Err(Unreadable::Foreign("channels that are finer than the first"));
        }
        if separate && !frame.is_progressive && first != [1, 1] {
            return Err(Unreadable::Foreign("channels of different sizes that come one after the other"));
        }
        Ok(Start { segments: self, frame, scan })
    }

    /// What is known about the coding of the scan that follows.
    fn coding(&self, frame: &Frame) -> Coding<'_> {
        let Frame { is_progressive, units, .. } = *frame;
        Coding { tables: &self.tables, interval: self.interval, is_progressive, units }
    }

    /// Skips segments up to the data of the next scan. Returns `None` at the end marker.
    fn next_scan(&mut self, frame: &mut Option<Frame>) -> Result<Option<Scan>, Unreadable> {
        loop {
            let (marker, start) = next_marker(self.bytes, self.at).ok_or_else(cut_off)?;
            self.at = start;
            match marker {
                0xd9 => return Ok(None),
                0x01 | 0xd0..=0xd8 => continue,
                _ => {}
            }
            let length = self.bytes.get(start..start + 2).ok_or_else(cut_off)?;
            let length = usize::from(length[0]) << 8 | usize::from(length[1]);
            let contents = self.bytes.get(start + 2..start + length.max(2)).ok_or_else(cut_off)?;
            self.at = start + length.max(2);
            match marker {
                0xc4 => self.tables_of(contents).ok_or_else(|| damaged("a Huffman table makes no sense"))?,
                0xdd => {
                    let &[high, low] = contents else { return Err(damaged("its restart interval is none")) };
                    self.interval = usize::from(high) << 8 | usize::from(low);
                }
                0xdb => self.quantization_of(contents).ok_or_else(|| damaged("a quantization table makes no sense"))?,
                0xe0 if contents.starts_with(b"JFIF\0") => self.jfif = true,
                0xe1 if self.exif.is_none() => self.exif = contents.strip_prefix(b"Exif\0\0"),
                0xee if self.started => return Err(damaged("its colours change between its scans")),
                0xee if contents.starts_with(b"Adobe") => self.adobe = contents.get(11).copied(),
                0xc0..=0xc2 if frame.is_some() => return Err(damaged("it has two frames")),
                0xc0..=0xc2 => {
                    *frame =
                        Some(read_frame(contents, marker == 0xc2).ok_or_else(|| damaged("its frame makes no sense"))?);
                }
                0xc3..=0xcf => return Err(Unreadable::Foreign("lossless or arithmetic coding")),
                0xda => {
                    let frame = frame.as_ref().ok_or_else(|| damaged("it has a scan before its frame"))?;
                    let scan = read_scan(contents, frame, self.at)
                        .ok_or_else(|| damaged("the start of a scan makes no sense"))?;
                    return Ok(Some(scan));
                }
                _ => {}
            }
        }
    }

    /// Keeps quantization tables, whose numbers stand in zigzag order.
    fn quantization_of(&mut self, mut contents: &[u8]) -> Option<()> {
        while let Some((&place, rest)) = contents.split_first() {
            let table = self.quantization.get_mut(usize::from(place & 15))?;
            let size = match place >> 4 {
                0 => 1,
                1 => 2,
                _ => return None,
            };
            let (numbers, rest) = rest.split_at_checked(64 * size)?;
            let mut steps = [0; 64];
            for (step, number) in steps.iter_mut().zip(numbers.chunks_exact(size)) {
                *step = number.iter().fold(0, |high, &low| high << 8 | u16::from(low));
            }
            *table = Some(steps);
            contents = rest;
        }
        Some(())
    }

    fn tables_of(&mut self, mut contents: &[u8]) -> Option<()> {
        while let Some((&place, rest)) = contents.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let (symbols, rest) = rest.split_at_checked(counts.iter().map(|&n| usize::from(n)).sum())?;
            let table = self.tables.get_mut(usize::from(place >> 4))?.get_mut(usize::from(place & 15))?;
            *table = Some(Table::new(counts, symbols)?);
            contents = rest;
        }
        Some(())
    }
}

fn read_frame(contents: &[u8], is_progressive: bool) -> Option<Frame> {
    let (&[8, h1, h0, w1, w0, count], rest) = contents.split_first_chunk::<6>()? else { return None };
    let number = |high: u8, low: u8| usize::from(high) << 8 | usize::from(low);
    let (width, height) = (number(w1, w0), number(h1, h0));
    if width == 0 || height == 0 || count == 0 || count > 4 || rest.len() != 3 * usize::from(count) {
        return None;
    }
    let mut components = Vec::new();
    for channel in rest.chunks_exact(3) {
        let sampling = [channel[1] >> 4, channel[1] & 15].map(usize::from);
        if !sampling.iter().all(|s| (1..=4).contains(s)) {
            return None;
        }
        components.push(Component {
            id: channel[0],
            sampling,
            quantization: usize::from(channel[2]),
            ..Component::default()
        });
    }
    // A single channel is coded block by block, regardless of its sampling factors.
    if let [only] = &mut components[..] {
        only.sampling = [1, 1];
    }
    let most = [0, 1].map(|axis| components.iter().map(|c| c.sampling[axis]).max().unwrap_or(1));
    let size = [width, height];
    let units = [0, 1].map(|axis| size[axis].div_ceil(8 * most[axis]));
    for c in &mut components {
        c.own = [0, 1].map(|axis| (size[axis] * c.sampling[axis]).div_ceil(8 * most[axis]));
        c.padded = [0, 1].map(|axis| units[axis] * c.sampling[axis]);
    }
    Some(Frame { width, height, is_progressive, components, units, is_buffered: is_progressive })
}

fn read_scan(contents: &[u8], frame: &Frame, at: usize) -> Option<Scan> {
    let (&count, rest) = contents.split_first()?;
    let (named, rest) = rest.split_at_checked(2 * usize::from(count))?;
    let &[first, last, approximation] = rest else { return None };
    let mut channels: Vec<(usize, usize, usize)> = Vec::new();
    for named in named.chunks_exact(2) {
        let channel = frame.components.iter().position(|c| c.id == named[0])?;
        if channels.iter().any(|&(known, ..)| known == channel) {
            return None;
        }
        channels.push((channel, usize::from(named[1] >> 4), usize::from(named[1] & 15)));
    }
    let refines = approximation >> 4 > 0;
    let band = [first, last].map(u32::from);
    // In a progressive file, only scans of DC coefficients may contain several channels.
    let sound = match band {
        _ if !frame.is_progressive => true,
        [0, last] => last == 0,
        [first, last] => first <= last && last <= 63 && count == 1,
    };
    (sound && !channels.is_empty()).then_some(Scan { channels, band, refines, at })
}

/// A JPEG file that has been read up to its first scan.
#[derive(Debug)]
pub(super) struct Start<'a> {
    segments: Segments<'a>,
    pub(super) frame: Frame,
    scan: Scan,
}

impl Start<'_> {
    /// The number of bytes that [`check`](Start::check) needs.
    pub(super) fn bytes(&self) -> usize {
        let blocks: usize = self.frame.components.iter().map(|c| c.padded[0] * c.padded[1]).sum();
        if self.frame.is_progressive { 8 * blocks } else { 0 }
    }

    /// The Exif metadata of the file.
    pub(super) fn exif(&self) -> Option<&[u8]> {
        self.segments.exif
    }

    /// Whether [`planes`](Start::planes) may be able to decode the file: it is not progressive, its first scan has all
    /// channels, and these are grey, or brightness and chroma of the same or half the resolution.
    pub(super) fn is_plain(&self) -> bool {
        let Frame { components, is_buffered, .. } = &self.frame;
        if *is_buffered {
            return false;
        }
        let Segments { jfif, adobe, .. } = self.segments;
        match &components[..] {
            [_] => true,
            [luma, first, second] => {
                // As libjpeg decides whether three channels are red, green and blue.
                let named = [luma.id, first.id, second.id] == *b"RGB";
                let rgb = !jfif && adobe.map_or(named, |transform| transform == 0);
                let sampled = matches!(luma.sampling, [1, 1] | [2, 1] | [2, 2]);
                !rgb && sampled && first.sampling == [1, 1] && second.sampling == [1, 1]
            }
            _ => false,
        }
    }

    /// The bytes that [`planes`](Start::planes) needs.
    pub(super) fn plane_bytes(&self) -> usize {
        Decoding::bytes(&self.frame.components)
    }

    /// Decodes a section of a [plain](Start::is_plain) file, and checks the rest of it. Returns the file as it was if it
    /// has an unusual order of segments.
    pub(super) fn planes(self, section: Section) -> Result<Result<Planes, Self>, Unreadable> {
        let Start { segments, frame, scan } = &self;
        let (components, size) = (&frame.components, [frame.width, frame.height]);
        let Some(mut decoding) = Decoding::new(size, components, &segments.quantization, section)? else {
            return Ok(Err(self));
        };
        let coding = segments.coding(frame);
        let end = decoding.scan(segments.bytes, scan, components, &coding).map_err(|e| unreadable(&e, 1))?;
        match next_marker(segments.bytes, end) {
            Some((0xd9, _)) => Ok(Ok(decoding.planes())),
            None => Err(cut_off()),
            Some(_) => Ok(Err(self)),
        }
    }

    /// Checks that all scans up to the end marker are complete.
    pub(super) fn check(self) -> Result<(), Unreadable> {
        let Start { mut segments, frame, scan } = self;
        let mut nonzero = Vec::new(); // one a channel, at most 4
        for c in frame.components.iter().filter(|_| frame.is_progressive) {
            nonzero.push(zeros(c.padded[0] * c.padded[1])?);
        }
        let (mut frame, mut scan) = (Some(frame), Some(scan));
        for number in 1.. {
            let (Some(known), Some(current)) = (&mut frame, scan) else { break };
            let mut checking = Checking { scan: &current, run: 0, nonzero: &mut nonzero };
            let walked =
                walk_units(segments.bytes, &current, &known.components, &segments.coding(known), &mut checking);
            segments.at = walked.map_err(|e| unreadable(&e, number))?;
            for &(channel, ..) in current.channels.iter().filter(|_| current.band[0] == 0 && !current.refines) {
                known.components[channel].is_coded = true;
            }
            scan = segments.next_scan(&mut frame)?;
        }
        let components = frame.map(|f| f.components).unwrap_or_default();
        match components.iter().position(|c| !c.is_coded) {
            Some(channel) => {
                let (missing, all) = (channel + 1, components.len());
                Err(Unreadable::Bad(format!("ends early: channel {missing} of {all} is missing")))
            }
            None => Ok(()),
        }
    }
}

/// The error of a scan, the `number`-th of the file.
fn unreadable(broken: &Broken, number: usize) -> Unreadable {
    let [done, total] = broken.units;
    Unreadable::Bad(match broken.fault {
        Fault::Ended => {
            let share = 100 * done / total.max(1);
            format!("ends early: scan {number} has {done} of the picture's {total} blocks ({share} %)")
        }
        Fault::Damaged => {
            format!("is damaged: block {done} of {total} in scan {number}, near byte {}", broken.at)
        }
    })
}
