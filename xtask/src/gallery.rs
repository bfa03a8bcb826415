//! `cargo xtask gallery`: generates `docs/gallery.md` and its pictures with the command `gradus image`.

use std::fmt::Write;
use std::path::Path;

/// The source photograph.
const SOURCE: &str = "crates/gradus-image/assets/astronaut.png";

/// The folder for the pictures.
const FOLDER: &str = "docs/images";

/// The largest total size of the pictures, in bytes.
const MOST_BYTES: u64 = 1_500_000;

/// The file name, heading and filters of a picture.
const PICTURES: &[(&str, &str, &str)] = &[
    ("resize.jpg", "Smaller", "resize --width 256"),
    ("blur.jpg", "Blur", "resize --width 256 + blur --sigma 3"),
    ("sharpen.jpg", "Sharpen", "resize --width 256 + sharpen --amount 0.7"),
    ("sobel.jpg", "Edges", "resize --width 256 + grayscale + sobel"),
    ("edges.png", "Edges above a threshold", "resize --width 256 + blur --sigma 1 + grayscale + sobel --threshold 0.6"),
    ("grayscale.jpg", "Grey", "resize --width 256 + grayscale"),
    ("threshold.png", "Threshold", "resize --width 256 + grayscale + threshold --at 0.5"),
    ("brightness.jpg", "Brightness", "resize --width 256 + brightness --factor 1.4"),
    ("contrast.jpg", "Contrast", "resize --width 256 + contrast --factor 1.6"),
    ("invert.jpg", "Invert", "resize --width 256 + invert"),
    ("crop.jpg", "Crop", "crop --width 256 --height 256 --left 100 --top 0"),
    ("flip.jpg", "Mirror", "resize --width 256 + flip --horizontal"),
    ("rotate.jpg", "Turn", "resize --width 256 + rotate --degrees 20"),
    (
        "expand.jpg",
        "Turn, with room for the corners",
        "resize --width 190 + rotate --degrees 20 --expand --filter bicubic",
    ),
    (
        "pixels.png",
        "Pixels",
        "crop --width 128 --height 128 --left 160 --top 50 + resize --width 16 --filter area + resize --width 256 --filter nearest",
    ),
];

/// Generates every picture, and the page that shows them.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let mut bytes = 0;
    for (file, _, filters) in PICTURES {
        let mut command = crate::workspace::cargo();
        command.args(["run", "--quiet", "--", "image"]).args(filters.split(' '));
        command.args([SOURCE, &format!("{FOLDER}/{file}"), "--force"]).current_dir(root);
        let status = command.status().map_err(|e| format!("cargo did not start: {e}"))?;
        if !status.success() {
            return Err(format!("{file} was not made: {status}"));
        }
        let path = root.join(FOLDER).join(file);
        bytes += std::fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?.len();
    }
    if bytes > MOST_BYTES {
        return Err(format!("the pictures take {bytes} bytes, more than {MOST_BYTES}; make them smaller"));
    }
    let path = root.join("docs/gallery.md");
    std::fs::write(&path, page()).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("{}: {} pictures, {bytes} bytes", path.display(), PICTURES.len());
    Ok(())
}

/// The text of the page.
fn page() -> String {
    let mut page = format!(
        "# Gallery\n\n\
         What `gradus image` makes of a photograph, and the command that does. The source is\n\
         [{SOURCE}](../{SOURCE}) (Eileen Collins, NASA,\n\
         public domain). Filters in a row are joined by `+`; `gradus image --help` lists them, and in\n\
         Rust each is a function of `gradus::image`.\n\n\
         `cargo xtask gallery` makes this page and its pictures anew.\n"
    );
    for (file, heading, filters) in PICTURES {
        let filters = filters.replace(" + ", " + \\\n  ");
        // Writing to a string cannot fail.
        let _ = write!(
            page,
            "\n## {heading}\n![{heading}](images/{file})\n```sh\ngradus image {filters} \\\n  {SOURCE} {file}\n```\n"
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_that_is_there_is_the_one_that_would_be_made() {
        let there = std::fs::read_to_string(crate::workspace::root().join("docs/gallery.md")).unwrap_or_default();
        assert!(there == page(), "docs/gallery.md is not up to date: run `cargo xtask gallery`");
        for (file, ..) in PICTURES {
            assert!(
                crate::workspace::root().join(FOLDER).join(file).is_file(),
                "{file} is missing: run `cargo xtask gallery`"
            );
        }
    }
}
