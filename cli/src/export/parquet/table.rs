//! A table in a Parquet file, written row by row.
//!
//! Guarantees: at most [`ROWS`] rows are in memory; each is a row group of the file. Every text is UTF-8. A column that
//! is never null is `REQUIRED`.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

/// Rows of a group: some tens of megabytes for the widest table.
const ROWS: usize = 1 << 17;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A signed whole number, of 64 bits.
    Number,
    /// An unsigned one, of 64 bits: an address.
    Address,
    /// ns since the Unix epoch, UTC.
    Time,
    /// A text.
    Text,
    /// Yes or no.
    Flag,
    /// A real number.
    Real,
}

/// A column: its name, what it holds, and whether it may be null.
pub type Column = (&'static str, Holds, Null);

/// Whether a column may be null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Null {
    /// It has a value in every row.
    Never,
    /// It may have none.
    May,
}

/// A value of a row.
#[derive(Clone, Debug)]
pub enum Cell {
    /// None.
    Null,
    /// Of a number, an address or a time.
    Number(i64),
    /// Of a text.
    Text(ByteArray),
    /// Of a flag.
    Flag(bool),
    /// Of a real number.
    Real(f64),
}

impl Cell {
    /// A number; it saturates, because figures come from the network.
    pub fn number(of: u64) -> Self {
        Self::Number(i64::try_from(of).unwrap_or(i64::MAX))
    }

    /// An address, in all 64 bits.
    pub fn address(of: u64) -> Self {
        Self::Number(of.cast_signed())
    }

    /// A text.
    pub fn text(of: &str) -> Self {
        Self::Text(ByteArray::from(of))
    }

    /// A value, or null.
    pub fn maybe<T>(of: Option<T>, cell: impl FnOnce(T) -> Self) -> Self {
        of.map_or(Self::Null, cell)
    }
}

/// The values of a column within the present group.
struct Values {
    holds: Holds,
    may_be_null: bool,
    numbers: Vec<i64>,
    texts: Vec<ByteArray>,
    flags: Vec<bool>,
    reals: Vec<f64>,
    /// 1 for a value, 0 for null.
    levels: Vec<i16>,
}

/// See the module.
pub struct Table<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    columns: Vec<Values>,
    rows: usize,
}

impl<W: Write + Send> Table<W> {
    /// Begins a file with these columns.
    ///
    /// # Errors
    /// The writer's.
    pub fn new(out: W, columns: &[Column]) -> io::Result<Self> {
        let fields = columns.iter().map(|column| field(*column).map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let schema = fields.and_then(|fields| Type::group_type_builder("memctl").with_fields(fields).build());
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_created_by(format!("memctl {}", env!("CARGO_PKG_VERSION")))
            .build();
        let writer = SerializedFileWriter::new(out, Arc::new(schema.map_err(failed)?), Arc::new(properties));
        let columns = columns.iter().map(|&(_, holds, null)| Values {
            holds,
            may_be_null: null == Null::May,
            numbers: Vec::new(),
            texts: Vec::new(),
            flags: Vec::new(),
            reals: Vec::new(),
            levels: Vec::new(),
        });
        Ok(Self { writer: writer.map_err(failed)?, columns: columns.collect(), rows: 0 })
    }

    /// Writes a row: a cell for each column.
    ///
    /// # Errors
    /// The writer's.
    pub fn row<const N: usize>(&mut self, cells: [Cell; N]) -> io::Result<()> {
        debug_assert_eq!(N, self.columns.len());
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.push(cell);
        }
        self.rows += 1;
        if self.rows == ROWS { self.group() } else { Ok(()) }
    }

    /// Completes the file.
    ///
    /// # Errors
    /// The writer's.
    pub fn finish(mut self) -> io::Result<()> {
        if self.rows > 0 {
            self.group()?;
        }
        self.writer.close().map(|_| ()).map_err(failed)
    }

    fn group(&mut self) -> io::Result<()> {
        let mut group = self.writer.next_row_group().map_err(failed)?;
        for column in &mut self.columns {
            column.write(&mut group).map_err(failed)?;
        }
        group.close().map_err(failed)?;
        self.rows = 0;
        Ok(())
    }
}

impl Values {
    fn push(&mut self, cell: Cell) {
        self.levels.push(i16::from(!matches!(cell, Cell::Null)));
        match cell {
            Cell::Null => {}
            Cell::Number(number) => self.numbers.push(number),
            Cell::Text(text) => self.texts.push(text),
            Cell::Flag(flag) => self.flags.push(flag),
            Cell::Real(real) => self.reals.push(real),
        }
    }

    fn write<W: Write + Send>(&mut self, group: &mut SerializedRowGroupWriter<'_, W>) -> Result<(), ParquetError> {
        let levels = self.may_be_null.then_some(&self.levels[..]);
        match self.holds {
            Holds::Number | Holds::Address | Holds::Time => write::<Int64Type, W>(group, &self.numbers, levels)?,
            Holds::Text => write::<ByteArrayType, W>(group, &self.texts, levels)?,
            Holds::Flag => write::<BoolType, W>(group, &self.flags, levels)?,
            Holds::Real => write::<DoubleType, W>(group, &self.reals, levels)?,
        }
        self.numbers.clear();
        self.texts.clear();
        self.flags.clear();
        self.reals.clear();
        self.levels.clear();
        Ok(())
    }
}

fn write<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let column = group.next_column()?;
    let mut column = column.ok_or_else(|| ParquetError::General("a file has more columns than its schema".into()))?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

fn field((name, holds, null): Column) -> Result<Type, ParquetError> {
    let (physical, logical) = match holds {
        Holds::Number => (Physical::INT64, None),
        Holds::Address => (Physical::INT64, Some(LogicalType::integer(64, false))),
        Holds::Time => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::NANOS))),
        Holds::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Holds::Flag => (Physical::BOOLEAN, None),
        Holds::Real => (Physical::DOUBLE, None),
    };
    let repetition = if null == Null::May { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    Type::primitive_type_builder(name, physical).with_logical_type(logical).with_repetition(repetition).build()
}

/// An error of the crate as one of the output.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    use super::*;

    #[test]
    fn rows_come_back_over_several_groups_with_their_nulls() {
        let columns: [Column; 3] = [
            ("number", Holds::Number, Null::Never),
            ("text", Holds::Text, Null::May),
            ("address", Holds::Address, Null::Never),
        ];
        let rows = ROWS + 3;
        let text = |at: usize| (!at.is_multiple_of(3)).then(|| format!("{}", at % 100));
        let file = tempfile::tempfile().unwrap();
        let mut table = Table::new(file.try_clone().unwrap(), &columns).unwrap();
        for at in 0..rows {
            let text = Cell::maybe(text(at).as_deref(), Cell::text);
            table.row([Cell::number(at as u64), text, Cell::address(u64::MAX - at as u64)]).unwrap();
        }
        table.finish().unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        assert_eq!(reader.metadata().num_row_groups(), 2);
        let mut seen = 0;
        for (at, row) in reader.get_row_iter(None).unwrap().enumerate() {
            let row = row.unwrap();
            assert_eq!(row.get_long(0).unwrap(), at as i64);
            assert_eq!(row.get_string(1).ok().cloned(), text(at));
            assert_eq!(row.get_ulong(2).unwrap(), u64::MAX - at as u64);
            seen += 1;
        }
        assert_eq!(seen, rows);
    }
}
