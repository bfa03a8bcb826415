//! The filters of `gradus image` and their options.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use crate::numbers::{memory, number, threads};

/// The text after the list of filters in `gradus image --help`.
pub(crate) const HELP: &str = "\
Filters in a row are joined by a word of its own, `+`; the pictures, and the options about files and devices, come once,
after the last filter:

  gradus image blur --sigma 2 + grayscale + resize --width 100 in.png out.png

IN is a PNG or JPEG file, whatever its name; the name of OUT ends in .png, .jpg or .jpeg. A file that is there already is
replaced only with --force. Colours are from 0 (dark) to 1 (bright), whatever the file's bits, and only OUT cuts off what is
outside; a PNG of 16 bits a channel gives one of 16 bits. Transparency stays as it is, and moves with its pixels.";

/// The longest side that a picture may have.
const LONGEST: usize = 65_535;

/// The pictures, and the options about files and the device.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub(crate) struct Files {
    /// The picture to read and the picture to write, after the last filter
    #[arg(value_name = "IN OUT")]
    pub(crate) pictures: Vec<PathBuf>,

    /// Replace OUT if it is there already
    #[arg(long)]
    pub(crate) force: bool,

    /// Quality of a JPEG file, 1 to 100 [default: 90]
    #[arg(long, value_name = "N", value_parser = quality)]
    pub(crate) quality: Option<u8>,

    /// The most memory to use for reading IN or for the result of a filter, such as 512MiB [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) max_memory: Option<usize>,

    /// The device to compute on; `gradus devices` lists them [default: cpu]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,

    /// Number of CPU threads [default: one per core, or GRADUS_NUM_THREADS]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// Print one JSON object as the last line
    #[arg(long)]
    pub(crate) json: bool,
}

impl Files {
    /// The first of these arguments that was given.
    pub(crate) fn given(&self) -> String {
        let named = [
            ("--force", self.force),
            ("--quality", self.quality.is_some()),
            ("--max-memory", self.max_memory.is_some()),
            ("--device", self.device.is_some()),
            ("--threads", self.threads.is_some()),
            ("--json", self.json),
        ];
        match self.pictures.first() {
            Some(picture) => format!("'{}'", picture.display()),
            None => named.iter().find(|(_, given)| *given).map_or_else(String::new, |(name, _)| (*name).to_owned()),
        }
    }
}

/// A filter with its options. Every filter has [`Files`], but in a chain only the last filter may set them.
#[derive(Debug, Subcommand)]
pub(crate) enum Filter {
    /// Blur with a Gaussian
    Blur {
        /// Standard deviation of the Gaussian in pixels, 0 to 1000
        #[arg(long, value_name = "PIXELS", value_parser = sigma, allow_negative_numbers = true)]
        sigma: f64,
        /// Radius at which the Gaussian is cut off [default: 3 sigma, rounded up]
        #[arg(long, value_name = "PIXELS", value_parser = radius)]
        radius: Option<usize>,
        /// What to assume beyond the border
        #[arg(long, value_enum, default_value = "replicate")]
        border: BorderName,
        #[command(flatten)]
        files: Files,
    },
    /// Show edges: bright where colours change
    Sobel {
        /// Show white where an edge is at least this strong (a step from black to white is 4), else black
        #[arg(long, value_name = "T", value_parser = factor, allow_negative_numbers = true)]
        threshold: Option<f64>,
        /// What to assume beyond the border
        #[arg(long, value_enum, default_value = "replicate")]
        border: BorderName,
        #[command(flatten)]
        files: Files,
    },
    /// Convert colours to grey (0.299 red + 0.587 green + 0.114 blue)
    Grayscale {
        /// Keep the red, green and blue channels, all with the same values, and alpha
        #[arg(long)]
        keep_channels: bool,
        #[command(flatten)]
        files: Files,
    },
    /// Set each channel to 1 where it is at least T, and to 0 elsewhere
    Threshold {
        /// The threshold, 0 to 1
        #[arg(long, value_name = "T", default_value = "0.5", value_parser = unit, allow_negative_numbers = true)]
        at: f64,
        #[command(flatten)]
        files: Files,
    },
    /// Make a picture brighter or darker
    Brightness {
        /// Factor for the colours: above 1 brighter, below 1 darker
        #[arg(long, value_name = "F", value_parser = factor, allow_negative_numbers = true)]
        factor: f64,
        #[command(flatten)]
        files: Files,
    },
    /// Move colours away from mid-grey, or towards it
    Contrast {
        /// Factor for the distance: above 1 more contrast, below 1 less
        #[arg(long, value_name = "F", value_parser = factor, allow_negative_numbers = true)]
        factor: f64,
        /// Use the mean of the picture instead of mid-grey
        #[arg(long)]
        about_mean: bool,
        #[command(flatten)]
        files: Files,
    },
    /// Turn bright into dark and dark into bright
    Invert {
        #[command(flatten)]
        files: Files,
    },
    /// Increase the differences between neighbouring pixels
    Sharpen {
        /// Strength of the effect
        #[arg(long, value_name = "A", default_value = "1", value_parser = factor, allow_negative_numbers = true)]
        amount: f64,
        /// What to assume beyond the border
        #[arg(long, value_enum, default_value = "replicate")]
        border: BorderName,
        #[command(flatten)]
        files: Files,
    },
    /// Compute (x - mean) / std, with one number for each channel or one for all; OUT clamps the result to 0 to 1
    Normalize {
        /// The means, separated by commas
        #[arg(long, value_name = "M,..", value_parser = finite, value_delimiter = ',', required = true, allow_negative_numbers = true)]
        mean: Vec<f64>,
        /// The standard deviations, separated by commas, above 0
        #[arg(long, value_name = "S,..", value_parser = finite, value_delimiter = ',', required = true)]
        std: Vec<f64>,
        #[command(flatten)]
        files: Files,
    },
    /// Change the size; if only the width or only the height is given, the aspect ratio is kept
    #[command(group(clap::ArgGroup::new("size").args(["width", "height"]).multiple(true).required(true)))]
    Resize {
        /// New width in pixels
        #[arg(long, value_name = "PIXELS", value_parser = side)]
        width: Option<usize>,
        /// New height in pixels
        #[arg(long, value_name = "PIXELS", value_parser = side)]
        height: Option<usize>,
        /// How values between pixels are computed; bilinear and bicubic average over areas when the picture shrinks
        #[arg(long, value_enum, default_value = "bilinear")]
        filter: ResizeName,
        #[command(flatten)]
        files: Files,
    },
    /// Cut out a section, by default from the middle
    Crop {
        /// Width of the section in pixels
        #[arg(long, value_name = "PIXELS", value_parser = side)]
        width: usize,
        /// Height of the section in pixels
        #[arg(long, value_name = "PIXELS", value_parser = side)]
        height: usize,
        /// Pixels to the left of the section
        #[arg(long, value_name = "PIXELS", value_parser = radius, requires = "top")]
        left: Option<usize>,
        /// Pixels above the section
        #[arg(long, value_name = "PIXELS", value_parser = radius, requires = "left")]
        top: Option<usize>,
        #[command(flatten)]
        files: Files,
    },
    /// Mirror a picture
    #[command(group(clap::ArgGroup::new("axes").args(["horizontal", "vertical"]).multiple(true).required(true)))]
    Flip {
        /// Swap left and right
        #[arg(long)]
        horizontal: bool,
        /// Swap top and bottom
        #[arg(long)]
        vertical: bool,
        #[command(flatten)]
        files: Files,
    },
    /// Rotate counter-clockwise about the middle; pixels from outside the picture are black or transparent
    Rotate {
        /// The angle in degrees
        #[arg(long, value_name = "D", value_parser = angle, allow_negative_numbers = true)]
        degrees: f64,
        /// Enlarge the picture so that the whole rotated picture fits
        #[arg(long)]
        expand: bool,
        /// How values between pixels are computed
        #[arg(long, value_enum, default_value = "bilinear")]
        filter: RotateName,
        #[command(flatten)]
        files: Files,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum BorderName {
    Replicate,
    Zero,
    Reflect,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ResizeName {
    Nearest,
    Bilinear,
    Bicubic,
    Area,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RotateName {
    Nearest,
    Bilinear,
    Bicubic,
}

impl Filter {
    pub(crate) fn files(&self) -> &Files {
        match self {
            Filter::Blur { files, .. }
            | Filter::Sobel { files, .. }
            | Filter::Grayscale { files, .. }
            | Filter::Threshold { files, .. }
            | Filter::Brightness { files, .. }
            | Filter::Contrast { files, .. }
            | Filter::Invert { files }
            | Filter::Sharpen { files, .. }
            | Filter::Normalize { files, .. }
            | Filter::Resize { files, .. }
            | Filter::Crop { files, .. }
            | Filter::Flip { files, .. }
            | Filter::Rotate { files, .. } => files,
        }
    }
}

fn float(text: &str, from: f64, to: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (from..=to).contains(n));
    number.ok_or_else(|| format!("give a number from {from} to {to}"))
}

fn sigma(text: &str) -> Result<f64, String> {
    float(text, 0.0, 1000.0)
}

fn factor(text: &str) -> Result<f64, String> {
    float(text, 0.0, 1e6)
}

fn finite(text: &str) -> Result<f64, String> {
    float(text, -1e6, 1e6)
}

fn unit(text: &str) -> Result<f64, String> {
    float(text, 0.0, 1.0)
}

fn angle(text: &str) -> Result<f64, String> {
    float(text, -360.0, 360.0)
}

fn radius(text: &str) -> Result<usize, String> {
    number(text, 0, LONGEST)
}

fn side(text: &str) -> Result<usize, String> {
    number(text, 1, LONGEST)
}

fn quality(text: &str) -> Result<u8, String> {
    let n = number(text, 1, 100)?;
    u8::try_from(n).map_err(|e| e.to_string())
}
