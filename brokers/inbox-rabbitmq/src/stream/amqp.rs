//! Messages of AMQP 1.0, which is what a stream has, whichever protocol they were sent over.
//!
//! Read only, and only what an inbox takes over. Values of which nothing is made are skipped.

use super::wire::{Malformed, Reader};

type Read<T> = Result<T, Malformed>;

const DESCRIBED: u8 = 0x00;

/// One value. What stands in it is not copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    Boolean(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f32),
    Double(f64),
    Char(u32),
    /// Milliseconds since 1970.
    Timestamp(i64),
    Uuid([u8; 16]),
    Binary(&'a [u8]),
    /// A string or a symbol. Older servers write here what they were sent, UTF-8 or not.
    Text(&'a [u8]),
    /// A list, a map, an array, a decimal number or a described value.
    Other,
}

/// A name, and what stands under it.
pub(crate) type Pair<'a> = (&'a [u8], Value<'a>);

/// What is in the properties of a message, by the place in their list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Property {
    MessageId = 0,
    Subject = 3,
    ReplyTo = 4,
    CorrelationId = 5,
    ContentType = 6,
    CreationTime = 9,
    GroupId = 10,
}

/// One message.
#[derive(Debug, Default)]
pub(crate) struct Message<'a> {
    pub(crate) annotations: Vec<Pair<'a>>,
    properties: Vec<Value<'a>>,
    pub(crate) application: Vec<Pair<'a>>,
    pub(crate) body: Body<'a>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) enum Body<'a> {
    #[default]
    None,
    /// Parts of one text of bytes.
    Data(Vec<&'a [u8]>),
    Value(Value<'a>),
    Sequence,
}

impl<'a> Message<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Read<Self> {
        let mut reader = Reader::new(bytes);
        let mut message = Self::default();
        while !reader.is_empty() {
            message.section(&mut reader)?;
        }
        Ok(message)
    }

    pub(crate) fn property(&self, property: Property) -> Value<'a> {
        let value = self.properties.get(property as usize);
        value.copied().unwrap_or(Value::Null)
    }

    fn section(&mut self, reader: &mut Reader<'a>) -> Read<()> {
        if reader.u8()? != DESCRIBED {
            return Err(Malformed);
        }
        let Value::Unsigned(section) = value(reader)? else {
            return Err(Malformed);
        };
        match section {
            // The header, annotations of the delivery, and the footer concern who delivers.
            0x70 | 0x71 | 0x78 => {
                value(reader)?;
            }
            0x72 => self.annotations = map(reader)?,
            0x73 => self.properties = list(reader)?,
            0x74 => self.application = map(reader)?,
            0x75 => {
                let Value::Binary(part) = value(reader)? else {
                    return Err(Malformed);
                };
                match &mut self.body {
                    Body::Data(parts) => parts.push(part),
                    body => *body = Body::Data(vec![part]),
                }
            }
            0x76 => {
                value(reader)?;
                self.body = Body::Sequence;
            }
            0x77 => self.body = Body::Value(value(reader)?),
            _ => return Err(Malformed),
        }
        Ok(())
    }
}

fn value<'a>(reader: &mut Reader<'a>) -> Read<Value<'a>> {
    let code = reader.u8()?;
    Ok(match code {
        DESCRIBED => {
            skip_described(reader)?;
            Value::Other
        }
        0x40 => Value::Null,
        0x41 => Value::Boolean(true),
        0x42 => Value::Boolean(false),
        0x56 => Value::Boolean(reader.u8()? != 0),
        0x43 | 0x44 => Value::Unsigned(0),
        0x50 | 0x52 | 0x53 => Value::Unsigned(reader.u8()?.into()),
        0x60 => Value::Unsigned(reader.u16()?.into()),
        0x70 => Value::Unsigned(reader.u32()?.into()),
        0x80 => Value::Unsigned(reader.u64()?),
        0x51 | 0x54 | 0x55 => Value::Signed(reader.u8()?.cast_signed().into()),
        0x61 => Value::Signed(reader.u16()?.cast_signed().into()),
        0x71 => Value::Signed(reader.u32()?.cast_signed().into()),
        0x81 => Value::Signed(reader.i64()?),
        0x72 => Value::Float(reader.array().map(f32::from_be_bytes)?),
        0x82 => Value::Double(reader.array().map(f64::from_be_bytes)?),
        0x73 => Value::Char(reader.u32()?),
        0x83 => Value::Timestamp(reader.i64()?),
        0x98 => Value::Uuid(reader.array()?),
        0xa0 => Value::Binary(short(reader)?),
        0xb0 => Value::Binary(reader.long()?),
        0xa1 | 0xa3 => Value::Text(short(reader)?),
        0xb1 | 0xb3 => Value::Text(reader.long()?),
        _ => {
            skip(code, reader)?;
            Value::Other
        }
    })
}

fn short<'a>(reader: &mut Reader<'a>) -> Read<&'a [u8]> {
    let length = reader.u8()?;
    reader.take(length.into())
}

/// The first half of a code says how long its value is, whatever it is.
fn skip(code: u8, reader: &mut Reader<'_>) -> Read<()> {
    match code >> 4 {
        0x4 => Ok(()),
        0x5 => reader.take(1).map(drop),
        0x6 => reader.take(2).map(drop),
        0x7 => reader.take(4).map(drop),
        0x8 => reader.take(8).map(drop),
        0x9 => reader.take(16).map(drop),
        0xa | 0xc | 0xe => short(reader).map(drop),
        0xb | 0xd | 0xf => reader.long().map(drop),
        _ => Err(Malformed),
    }
}

/// A descriptor and its value. Either may be described again, to any depth, so this counts and does not recur.
fn skip_described(reader: &mut Reader<'_>) -> Read<()> {
    let mut expected = 2_usize;
    while expected > 0 {
        match reader.u8()? {
            DESCRIBED => expected += 1,
            code => {
                skip(code, reader)?;
                expected -= 1;
            }
        }
    }
    Ok(())
}

/// How many values, and those.
fn compound<'a>(reader: &mut Reader<'a>, short_code: u8, long_code: u8) -> Read<(u32, Reader<'a>)> {
    let code = reader.u8()?;
    if code == short_code {
        let mut content = Reader::new(short(reader)?);
        Ok((content.u8()?.into(), content))
    } else if code == long_code {
        let mut content = Reader::new(reader.long()?);
        Ok((content.u32()?, content))
    } else {
        Err(Malformed)
    }
}

fn list<'a>(reader: &mut Reader<'a>) -> Read<Vec<Value<'a>>> {
    const EMPTY: u8 = 0x45;
    if reader.rest().first() == Some(&EMPTY) {
        reader.u8()?;
        return Ok(Vec::new());
    }
    let (count, mut content) = compound(reader, 0xc0, 0xd0)?;
    let mut values = Vec::new();
    for _ in 0..count {
        values.push(value(&mut content)?);
        if values.len() > Property::GroupId as usize {
            break;
        }
    }
    Ok(values)
}

/// Without the pairs whose name is a number: nothing here has such names.
fn map<'a>(reader: &mut Reader<'a>) -> Read<Vec<Pair<'a>>> {
    let (count, mut content) = compound(reader, 0xc1, 0xd1)?;
    let mut pairs = Vec::new();
    for _ in 0..count / 2 {
        let (name, value) = (value(&mut content)?, value(&mut content)?);
        if let Value::Text(name) = name {
            pairs.push((name, value));
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_kind_are_read_or_skipped() {
        for (bytes, expected) in [
            (&b"\x40"[..], Value::Null),
            (b"\x56\x01", Value::Boolean(true)),
            (b"\x44", Value::Unsigned(0)),
            (b"\x53\x07", Value::Unsigned(7)),
            (b"\x55\xff", Value::Signed(-1)),
            (b"\x71\xff\xff\xff\xfe", Value::Signed(-2)),
            (b"\x83\0\0\0\0\0\0\0\x05", Value::Timestamp(5)),
            (b"\xa1\x02ab", Value::Text(b"ab")),
            (b"\xb0\0\0\0\x01\xff", Value::Binary(b"\xff")),
            (b"\xc0\x02\x01\x40", Value::Other),
            (b"\xe0\x04\x02\x50\x01\x02", Value::Other),
            (b"\x94\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", Value::Other),
            (b"\0\0\x40\x40\xa1\x01x", Value::Other),
        ] {
            let mut reader = Reader::new(bytes);
            assert_eq!(value(&mut reader), Ok(expected), "{bytes:?}");
            assert!(reader.is_empty(), "{bytes:?}");
        }
        for bytes in [&b""[..], b"\x53", b"\xa1\x05ab", b"\x20", b"\0\0\0"] {
            assert_eq!(value(&mut Reader::new(bytes)), Err(Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn depth_costs_nothing() {
        let deep = [vec![DESCRIBED; 1_000_000], vec![0x40; 1_000_001]].concat();
        assert_eq!(value(&mut Reader::new(&deep)), Ok(Value::Other));
    }

    #[test]
    fn sections_are_told_apart() {
        let bytes = b"\0\x53\x70\xc0\x02\x01\x41\
            \0\x53\x72\xc1\x0a\x02\xa3\x05x-abc\xa1\x00\
            \0\x53\x73\xc0\x08\x04\xa1\x01i\x40\x40\xa1\x00\
            \0\x53\x74\xc1\x05\x02\xa1\x01n\x41\
            \0\x53\x75\xa0\x02he\0\x53\x75\xa0\x01y";
        let message = Message::read(bytes).unwrap();
        assert_eq!(message.annotations, [(&b"x-abc"[..], Value::Text(b""))]);
        let id = message.property(Property::MessageId);
        assert_eq!(id, Value::Text(b"i"));
        assert_eq!(message.property(Property::GroupId), Value::Null);
        assert_eq!(message.application, [(&b"n"[..], Value::Boolean(true))]);
        assert_eq!(message.body, Body::Data(vec![b"he", b"y"]));
        assert!(Message::read(b"hello").is_err());
        assert!(Message::read(b"\0\x53\x79\x40").is_err());
    }
}
