//! Pictures from untrusted bytes: PNG, JPEG and WebP to rows of RGB. Sizes are checked in the headers, before anything of
//! that size is allocated. As PIL's `exif_transpose` and `convert("RGB")` do it: turned upright as the EXIF data says,
//! alpha dropped, the first frame of an animation.

use std::io::Cursor;

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use crate::Failure;

/// The formats' own bounds are beyond it, but for JPEG's.
const MAX_SIDE: u64 = 65535;
/// What a decoder may allocate beside the picture: metadata, palettes, tables.
const MAX_SIDE_DATA: usize = 64 << 20;

#[derive(Debug)]
pub struct Picture {
    pub width: u32,
    pub height: u32,
    pub rgb: Vec<u8>, // [height, width, 3]
}

pub fn decode(bytes: &[u8], max_pixels: u64) -> Result<Picture, Failure> {
    let (picture, exif) = match bytes {
        [] => return Err(Failure::Invalid("the image is empty".to_owned())),
        [0x89, b'P', b'N', b'G', ..] => decode_png(bytes, max_pixels)?,
        [0xff, 0xd8, 0xff, ..] => decode_jpeg(bytes, max_pixels)?,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
            decode_webp(bytes, max_pixels)?
        }
        _ => {
            return Err(Failure::Unsupported(format!(
                "{}; PNG, JPEG and WebP images are read",
                name_of(bytes)
            )))
        }
    };
    Ok(match exif.as_deref().and_then(orientation) {
        Some(orientation) => turn_upright(picture, orientation),
        None => picture,
    })
}

/// What else the bytes may be.
fn name_of(bytes: &[u8]) -> &'static str {
    let is_heif = bytes.get(4..8) == Some(b"ftyp");
    match bytes {
        [b'G', b'I', b'F', b'8', ..] => "this is a GIF",
        [b'B', b'M', ..] => "this is a BMP",
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => "this is a TIFF",
        [b'%', b'P', b'D', b'F', ..] => "this is a PDF",
        [b'<', ..] => "this is text, perhaps an SVG or a web page",
        _ if is_heif => "this is a HEIF or AVIF image, or a video",
        _ => "this is no image",
    }
}

fn check_size(width: u64, height: u64, max_pixels: u64) -> Result<(), Failure> {
    if width == 0 || height == 0 {
        return Err(Failure::Corrupt(format!("the image has {width} x {height} pixels")));
    }
    if width > MAX_SIDE || height > MAX_SIDE || width * height > max_pixels {
        return Err(Failure::Invalid(format!(
            "the image has {width} x {height} pixels, and at most {max_pixels} in all and {MAX_SIDE} a side are read; scale it down"
        )));
    }
    Ok(())
}

type Decoded = (Picture, Option<Vec<u8>>); // with its EXIF data

/// Keeps the first three of `channels` bytes of each pixel, or repeats the first of fewer.
fn to_rgb(mut data: Vec<u8>, channels: usize) -> Vec<u8> {
    let pixels = data.len() / channels;
    if channels == 3 {
        return data;
    }
    if channels > 3 {
        for i in 0..pixels {
            data.copy_within(i * channels..i * channels + 3, i * 3);
        }
        data.truncate(pixels * 3);
        return data;
    }
    data.chunks_exact(channels).flat_map(|p| [p[0]; 3]).collect()
}

fn decode_png(bytes: &[u8], max_pixels: u64) -> Result<Decoded, Failure> {
    let wrong = |e: png::DecodingError| match e {
        png::DecodingError::LimitsExceeded => {
            Failure::Invalid("the PNG image needs too much memory".to_owned())
        }
        e => Failure::Corrupt(format!("the PNG image is damaged: {e}")),
    };
    let mut decoder =
        png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: MAX_SIDE_DATA });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let (width, height) = decoder.read_header_info().map_err(wrong)?.size();
    check_size(width.into(), height.into(), max_pixels)?;
    let mut reader = decoder.read_info().map_err(wrong)?;
    let size = reader.output_buffer_size();
    let mut data = vec![0; size.ok_or(png::DecodingError::LimitsExceeded).map_err(wrong)?];
    let frame = reader.next_frame(&mut data).map_err(wrong)?;
    if (frame.width, frame.height) != (width, height) {
        return Err(Failure::Corrupt(
            "the PNG image is damaged: its first frame has another size".to_owned(),
        ));
    }
    data.truncate(frame.buffer_size());
    let exif = reader.info().exif_metadata.as_ref().map(|e| e.to_vec());
    Ok((Picture { width, height, rgb: to_rgb(data, frame.color_type.samples()) }, exif))
}

fn decode_jpeg(bytes: &[u8], max_pixels: u64) -> Result<Decoded, Failure> {
    let wrong = |e: zune_jpeg::errors::DecodeErrors| {
        Failure::Corrupt(format!("the JPEG image is damaged: {e}"))
    };
    let options = DecoderOptions::default()
        .set_max_width(MAX_SIDE as usize)
        .set_max_height(MAX_SIDE as usize)
        .set_strict_mode(false)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(wrong)?;
    let (width, height) = decoder.dimensions().unwrap_or((0, 0));
    check_size(width as u64, height as u64, max_pixels)?;
    // The decoder makes grey of what is not there.
    if !jpeg_ends(bytes) {
        return Err(Failure::Corrupt(
            "the JPEG image is damaged: it is cut off before its end".to_owned(),
        ));
    }
    let rgb = decoder.decode().map_err(wrong)?;
    if rgb.len() != width * height * 3 {
        return Err(Failure::Corrupt("the JPEG image is damaged: it lacks rows".to_owned()));
    }
    let exif = decoder.exif().cloned();
    Ok((Picture { width: width as u32, height: height as u32, rgb }, exif))
}

/// Whether there is an end marker behind the last scan.
fn jpeg_ends(bytes: &[u8]) -> bool {
    let marker = |code: u8| bytes.windows(2).rposition(|w| w == [0xff, code]);
    match (marker(0xd9), marker(0xda)) {
        (Some(end), Some(scan)) => end > scan,
        _ => false,
    }
}

fn decode_webp(bytes: &[u8], max_pixels: u64) -> Result<Decoded, Failure> {
    let wrong = |e: image_webp::DecodingError| match e {
        image_webp::DecodingError::MemoryLimitExceeded => {
            Failure::Invalid("the WebP image needs too much memory".to_owned())
        }
        e => Failure::Corrupt(format!("the WebP image is damaged: {e}")),
    };
    // A frame's own header may say more than the file's, and is what the decoder allocates by.
    for frame in bytes.windows(18).filter(|w| w[..4] == *b"VP8 " && w[11..14] == [0x9d, 1, 0x2a]) {
        let side = |i: usize| u64::from(u16::from_le_bytes([frame[i], frame[i + 1]]) & 0x3fff);
        check_size(side(14), side(16), max_pixels)?;
    }
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(wrong)?;
    let (width, height) = decoder.dimensions();
    check_size(width.into(), height.into(), max_pixels)?;
    decoder.set_memory_limit(MAX_SIDE_DATA);
    let exif = decoder.exif_metadata().ok().flatten();
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut data = vec![0; width as usize * height as usize * channels];
    decoder.read_image(&mut data).map_err(wrong)?;
    Ok((Picture { width, height, rgb: to_rgb(data, channels) }, exif))
}

/// Tag 0x0112 of the first directory of EXIF data (a TIFF file), when it asks for turning: 2 to 8.
fn orientation(exif: &[u8]) -> Option<u16> {
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let little = match tiff.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let b = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(b) } else { u16::from_be_bytes(b) })
    };
    let b = tiff.get(4..8)?.try_into().ok()?;
    let directory = if little { u32::from_le_bytes(b) } else { u32::from_be_bytes(b) } as usize;
    let entries = usize::from(short(directory)?);
    (0..entries)
        .map_while(|i| Some((short(directory + 2 + i * 12)?, directory + 2 + i * 12)))
        .find(|(tag, _)| *tag == 0x0112)
        .and_then(|(_, entry)| short(entry + 8))
        .filter(|value| (2..=8).contains(value))
}

/// The picture as it should be seen. The values are those of the EXIF standard: which row and which column of what is
/// seen come first in the file.
fn turn_upright(picture: Picture, orientation: u16) -> Picture {
    let (w, h) = (picture.width as usize, picture.height as usize);
    let transposed = orientation >= 5;
    let (out_w, out_h) = if transposed { (h, w) } else { (w, h) };
    let mirrored_x = matches!(orientation, 2 | 3 | 6 | 7);
    let mirrored_y = matches!(orientation, 3 | 4 | 7 | 8);
    let mut rgb = Vec::with_capacity(picture.rgb.len());
    for y in 0..out_h {
        for x in 0..out_w {
            let x = if mirrored_x { out_w - 1 - x } else { x };
            let y = if mirrored_y { out_h - 1 - y } else { y };
            let from = if transposed { x * w + y } else { y * w + x } * 3;
            rgb.extend_from_slice(&picture.rgb[from..from + 3]);
        }
    }
    Picture { width: out_w as u32, height: out_h as u32, rgb }
}
