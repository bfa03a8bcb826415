//! Walks over the coded blocks of a scan to check that they are complete. A *unit* is the smallest group of blocks that
//! a scan codes together (an MCU).

use super::huffman::{Bits, Fault, Table};

/// A channel of the picture in its coded form.
#[derive(Debug, Clone, Default)]
pub(super) struct Component {
    pub(super) id: u8,
    /// The number of its quantization table.
    pub(super) quantization: usize,
    /// The number of its blocks in a unit of all channels, horizontally and vertically.
    pub(super) sampling: [usize; 2],
    /// The number of blocks of 8 x 8 samples that the channel has, horizontally and vertically.
    pub(super) own: [usize; 2],
    /// The same number, rounded up to whole units of all channels.
    pub(super) padded: [usize; 2],
    /// Whether a scan contained its DC coefficients.
    pub(super) is_coded: bool,
}

/// A scan, as described by its start-of-scan segment.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    /// Its channels: for each, its index in the frame, the number of its table for DC coefficients, and the number of
    /// its table for AC coefficients.
    pub(super) channels: Vec<(usize, usize, usize)>,
    /// The first and the last coefficient.
    pub(super) band: [u32; 2],
    /// Whether it adds one bit to coefficients that an earlier scan contained.
    pub(super) refines: bool,
    /// The position at which its data begin.
    pub(super) at: usize,
}

/// What is needed to decode a scan, in addition to its data.
pub(super) struct Coding<'a> {
    /// The Huffman tables: those for the DC coefficients, then those for the AC coefficients.
    pub(super) tables: &'a [[Option<Table>; 4]; 2],
    /// The number of units between restart markers; 0 if there are no restart markers.
    pub(super) interval: usize,
    pub(super) is_progressive: bool,
    /// The number of units of all channels, horizontally and vertically.
    pub(super) units: [usize; 2],
}

/// The point at which a scan ends too early or is damaged.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) fault: Fault,
    /// The number of units before that point, and the number of all units.
    pub(super) units: [usize; 2],
    /// The position in the file.
    pub(super) at: usize,
}

/// What happens to the blocks of a scan.
pub(super) trait Walk {
    /// Called at every restart marker.
    fn restart(&mut self);

    /// Reads a block of a channel (its index, and the numbers of its tables), at this place among the padded blocks.
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        coding: &Coding<'_>,
        channel: (usize, usize, usize),
        place: usize,
    ) -> Result<(), Fault>;
}

/// Walks over all units of the scan. Returns the position at which its data end, or one a little after it.
pub(super) fn walk_units(
    bytes: &[u8],
    scan: &Scan,
    components: &[Component],
    coding: &Coding<'_>,
    walk: &mut impl Walk,
) -> Result<usize, Broken> {
    let mut bits = Bits::new(bytes, scan.at);
    let alone = scan.channels.len() == 1;
    let units = match scan.channels[..] {
        [(channel, ..)] => components[channel].own,
        _ => coding.units,
    };
    let total = units[0] * units[1];
    let [mut x, mut y] = [0, 0];
    for unit in 0..total {
        let broken = |fault, bits: &Bits<'_>| Broken { fault, units: [unit, total], at: bits.at() };
        if coding.interval > 0 && unit > 0 && unit.is_multiple_of(coding.interval) {
            let number = 0xd0 + ((unit / coding.interval - 1) % 8) as u8;
            match bits.marker() {
                Some(marker) if marker == number => walk.restart(),
                Some(0xd0..=0xd7) => return Err(broken(Fault::Damaged, &bits)),
                _ => return Err(broken(Fault::Ended, &bits)),
            }
        }
        for &channel in &scan.channels {
            let component = &components[channel.0];
            let [across, down] = if alone { [1, 1] } else { component.sampling };
            for row in 0..down {
                let place = (y * down + row) * component.padded[0] + x * across;
                for place in place..place + across {
                    walk.block(&mut bits, coding, channel, place).map_err(|fault| broken(fault, &bits))?;
                }
            }
        }
        x += 1;
        if x == units[0] {
            [x, y] = [0, y + 1];
        }
    }
    Ok(bits.at())
}

/// Skips the blocks of a scan, and so checks that they are complete.
pub(super) struct Checking<'a> {
    pub(super) scan: &'a Scan,
    /// The number of blocks that have no further coefficients in this scan.
    pub(super) run: u32,
    /// For the channels of progressive files: for each padded block, a mask of the coefficients that are not 0, in the
    /// order of the file.
    pub(super) nonzero: &'a mut [Vec<u64>],
}

impl Walk for Checking<'_> {
    fn restart(&mut self) {
        self.run = 0;
    }

    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        coding: &Coding<'_>,
        (channel, dc, ac): (usize, usize, usize),
        place: usize,
    ) -> Result<(), Fault> {
        let Checking { scan, run, nonzero } = self;
        if !coding.is_progressive {
            return baseline(bits, table(coding, 0, dc), table(coding, 1, ac));
        }
        if scan.band[0] == 0 {
            return mean(bits, table(coding, 0, dc), scan.refines);
        }
        let known = nonzero.get_mut(channel).and_then(|masks| masks.get_mut(place)).ok_or(Fault::Damaged)?;
        let skip = if scan.refines { refined } else { first };
        skip(bits, table(coding, 1, ac), scan.band, run, known)
    }
}

pub(super) fn table<'a>(coding: &Coding<'a>, kind: usize, number: usize) -> Option<&'a Table> {
    coding.tables[kind].get(number)?.as_ref()
}

/// Skips the DC coefficient of a block, or one bit of it in a scan that refines earlier ones.
fn mean(bits: &mut Bits<'_>, table: Option<&Table>, refines: bool) -> Result<(), Fault> {
    if refines {
        return bits.take(1).map(drop);
    }
    match bits.code(table.ok_or(Fault::Damaged)?)? {
        size @ 0..=16 => bits.take(u32::from(size)).map(drop),
        _ => Err(Fault::Damaged),
    }
}

/// Skips a whole block of a file that is not progressive.
fn baseline(bits: &mut Bits<'_>, dc: Option<&Table>, ac: Option<&Table>) -> Result<(), Fault> {
    mean(bits, dc, false)?;
    let ac = ac.ok_or(Fault::Damaged)?;
    let mut k = 1;
    while k < 64 {
        let code = bits.code(ac)?;
        let (zeros, size) = (u32::from(code >> 4), u32::from(code & 15));
        match (zeros, size) {
            (15, 0) => k += 16,
            (_, 0) => break,
            _ if k + zeros > 63 => return Err(Fault::Damaged),
            _ => {
                bits.take(size)?;
                k += zeros + 1;
            }
        }
    }
    Ok(())
}

/// The number of blocks, including this one, that have no further coefficients in this scan.
fn end_of_blocks(bits: &mut Bits<'_>, zeros: u32) -> Result<u32, Fault> {
    Ok((1 << zeros) + bits.take(zeros)?)
}

/// Skips coefficients of a block that no earlier scan contained.
fn first(bits: &mut Bits<'_>, ac: Option<&Table>, band: [u32; 2], run: &mut u32, known: &mut u64) -> Result<(), Fault> {
    if *run > 0 {
        *run -= 1;
        return Ok(());
    }
    let ac = ac.ok_or(Fault::Damaged)?;
    let mut k = band[0];
    while k <= band[1] {
        let code = bits.code(ac)?;
        let (zeros, size) = (u32::from(code >> 4), u32::from(code & 15));
        match (zeros, size) {
            (15, 0) => k += 16,
            (_, 0) => {
                *run = end_of_blocks(bits, zeros)? - 1;
                break;
            }
            _ if k + zeros > 63 => return Err(Fault::Damaged),
            _ => {
                bits.take(size)?;
                *known |= 1 << (k + zeros);
                k += zeros + 1;
            }
        }
    }
    Ok(())
}

/// Skips one more bit of each known coefficient of a block, and the coefficients that are new.
fn refined(
    bits: &mut Bits<'_>,
    ac: Option<&Table>,
    band: [u32; 2],
    run: &mut u32,
    known: &mut u64,
) -> Result<(), Fault> {
    let ac = ac.ok_or(Fault::Damaged)?;
    let mut k = band[0];
    while *run == 0 && k <= band[1] {
        let code = bits.code(ac)?;
        let (mut zeros, size) = (u32::from(code >> 4), u32::from(code & 15));
        if size == 0 && zeros < 15 {
            *run = end_of_blocks(bits, zeros)?;
            break;
        }
        if size > 0 {
            // The sign of the new coefficient.
            bits.take(1)?;
        }
        while k <= band[1] {
            if *known >> k & 1 == 1 {
                bits.take(1)?;
            } else if zeros == 0 {
                break;
            } else {
                zeros -= 1;
            }
            k += 1;
        }
        if size > 0 {
            if k > band[1] {
                return Err(Fault::Damaged);
            }
            *known |= 1 << k;
        }
        k += 1;
    }
    if *run > 0 {
        *run -= 1;
        for _ in (k..=band[1]).filter(|k| *known >> k & 1 == 1) {
            bits.take(1)?;
        }
    }
    Ok(())
}
