package shardpack

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"os"
	"sort"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// leastBudget bounds the work on a file that is full of false markers.
const leastBudget = 64 << 20

// RecoverOptions changes how a damaged shard is recovered. The zero value is right for most.
type RecoverOptions struct {
	// Limits is what the damaged shard may ask for.
	Limits Limits
	// KeepEntries also keeps the intact entries of records that have damaged ones. Recovery.Lost names the others; the
	// new shard does not show that they were there.
	KeepEntries bool
	// Overwrite and NoSync are those of WriterOptions.
	Overwrite, NoSync bool
}

// Recovery is what Recover did.
type Recovery struct {
	// Records is how many were recovered.
	Records int
	// Lost is what could not be recovered, in the order of the file.
	Lost []LostPart
	// HadIndex tells whether the offsets of the index could be followed.
	HadIndex bool
}

// LostPart is something that could not be recovered.
type LostPart struct {
	// Offset is where it starts in the damaged file, and Size its bytes.
	Offset, Size uint64
	// Key is that of the record; empty if it is not known.
	Key string
	// Entry is the entry, if the rest of its record was recovered.
	Entry string
	// Reason says what is wrong with it.
	Reason error
}

// Recover writes a new shard with every intact record of a damaged one, as it was stored. The input may also be the
// hidden file that a killed writer left.
//
// If the index is intact, its offsets are used. Otherwise the file is read from its start; after damage, the search
// continues at the next marker with an intact head around it.
func Recover(input, output string, options RecoverOptions) (Recovery, error) {
	file, size, err := openFile(input)
	if err != nil {
		return Recovery{}, err
	}
	defer func() { _ = file.Close() }()
	if same, err := sameFile(file, output); err != nil || same {
		if same {
			err = invalid("", "a shard cannot be recovered into itself")
		}
		return Recovery{}, fault.Located(err, input, "")
	}
	d := &damaged{
		source: &source{at: file, name: input, limits: limitsOf([]Options{{options.Limits}})}, size: size,
		options: options, output: output, budget: leastBudget + 16*size,
	}
	if err := d.recover(); err != nil {
		return Recovery{}, err
	}
	sort.SliceStable(d.result.Lost, func(a, b int) bool { return d.result.Lost[a].Offset < d.result.Lost[b].Offset })
	return d.result, nil
}

func sameFile(file *os.File, path string) (bool, error) {
	mine, err := file.Stat()
	if err != nil {
		return false, fault.IO("cannot read", file.Name(), err)
	}
	other, err := os.Stat(path)
	return err == nil && os.SameFile(mine, other), nil
}

// damaged is a shard that is being recovered.
type damaged struct {
	source  *source
	size    uint64
	options RecoverOptions
	output  string
	result  Recovery
	// budget is how many bytes of heads may still be looked at in vain.
	budget uint64
	// window holds some bytes of the file from windowAt on.
	window   []byte
	windowAt uint64
}

func (d *damaged) recover() error {
	options := WriterOptions{Overwrite: d.options.Overwrite, NoSync: d.options.NoSync}
	var fields shard.Object
	records := d.scan()
	reader, err := newReader(d.source.at, d.size, d.source.name, d.source.limits)
	if err == nil {
		err = reader.index.checkOffsets()
	}
	switch {
	case err == nil:
		d.result.HadIndex = true
		records = d.alongIndex(reader)
		if fields, err = reader.Metadata(); err != nil && !saysDataIsBad(err) {
			return err
		}
		// The fields may have any type.
		options.User, _ = fields["user"].(shard.Object)
		options.Created, _ = fields["created"].(string)
	case !saysDataIsBad(err):
		return err
	}
	return d.write(records, options, fields)
}

// write copies what is intact. The first record decides the alignment.
func (d *damaged) write(records iter.Seq2[*Record, error], options WriterOptions, fields shard.Object) error {
	var w *Writer
	defer func() {
		if w != nil {
			_ = w.Close()
		}
	}()
	for record, err := range records {
		if err != nil {
			return err
		}
		if w == nil {
			options.Alignment = record.Alignment()
			if w, err = Create(d.output, options); err != nil {
				return err
			}
		}
		if err := d.copy(w, record); err != nil {
			return err
		}
	}
	if w == nil {
		var err error
		if w, err = Create(d.output, options); err != nil {
			return err
		}
	}
	w.KeepFields(fields)
	d.result.Records = w.Len()
	return w.Finalize()
}

// copy writes a record, or says that it is lost.
func (d *damaged) copy(w *Writer, record *Record) error {
	err := w.Copy(record)
	if err != nil && w.failed == nil && d.options.KeepEntries {
		err = d.keepEntries(w, record)
	}
	if err == nil {
		return nil
	}
	if w.failed != nil || !saysDataIsBad(err) {
		return err
	}
	key := ""
	if checkKey(record.key()) == nil {
		key = record.Key()
	}
	d.lose(record.offset, record.Size(), key, err)
	return nil
}

// keepEntries writes the intact entries of a record.
func (d *damaged) keepEntries(w *Writer, record *Record) error {
	if err := checkKey(record.key()); err != nil {
		return err
	}
	if err := record.checkNoMetadata(); err != nil {
		return err
	}
	var intact []storedEntry
	var lost []LostPart
	for e := range record.Entries() {
		data, err := e.Stored()
		switch {
		case err == nil:
			intact = append(intact, storedEntry{record.row(e.number), e.Name(), e.ContentType(), data})
		case !saysDataIsBad(err):
			return err
		default:
			part := LostPart{Offset: record.offset, Key: record.Key(), Entry: e.Name(), Reason: err}
			if offset, err := e.Offset(); err == nil {
				part.Offset, part.Size = offset, e.StoredSize()
			}
			lost = append(lost, part)
		}
	}
	encoding, metadata := record.StoredMetadata()
	encoded, err := w.encoder.assemble(record.Key(), intact, encoding, metadata)
	if err == nil {
		err = w.write(encoded)
	}
	if err == nil {
		d.result.Lost = append(d.result.Lost, lost...)
	}
	return err
}

func (d *damaged) lose(offset, size uint64, key string, reason error) {
	d.result.Lost = append(d.result.Lost, LostPart{Offset: offset, Size: size, Key: key, Reason: reason})
}

// alongIndex gives the records that the index names. It never takes records from inside entries.
func (d *damaged) alongIndex(r *Reader) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for i := range r.Len() {
			record, err := r.openRecord(i)
			if err != nil {
				if !saysDataIsBad(err) {
					yield(nil, err)
					return
				}
				d.lose(r.index.offset(i), r.index.offset(i+1)-r.index.offset(i), "", err)
				continue
			}
			if !yield(record, nil) {
				return
			}
		}
	}
}

// scan gives the records with an intact head, from the start of the file on.
func (d *damaged) scan() iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for position := uint64(0); position < d.size; {
			record, next, err := d.look(position)
			if err != nil {
				yield(nil, err)
				return
			}
			if record != nil && !yield(record, nil) {
				return
			}
			position = next
		}
	}
}

// look gives the record at a position, if it is intact, and where to look next.
func (d *damaged) look(position uint64) (*Record, uint64, error) {
	start, err := d.bytes(position, blockStartSize)
	if err != nil {
		return nil, 0, err
	}
	startsEmpty := isZero(start) // before the window moves on
	var reason error = broken(shard.CodeTruncated, "P-FTR-1", "the file ends inside a record")
	if len(start) == blockStartSize {
		size, marker := blockStart(start)
		if marker == indexMarker {
			return nil, d.size, nil // no more records
		}
		record, err := d.open(position)
		if record != nil {
			return record, position + size, nil
		}
		if err != nil && !saysDataIsBad(err) {
			return nil, 0, err
		}
		reason = err
	}
	if startsEmpty {
		if empty, err := d.isEmpty(position); err != nil || empty { // space that a writer reserved and did not use
			return nil, d.size, err
		}
	}
	next, err := d.nextRecord(position + 1)
	if err != nil {
		return nil, 0, err
	}
	d.lose(position, next-position, "", fault.Located(reason, d.source.name, ""))
	return nil, next, nil
}

// open opens the record at a position, if its head is intact.
func (d *damaged) open(position uint64) (*Record, error) {
	first, err := d.bytes(position, fixedHeadSize)
	if err != nil {
		return nil, err
	}
	if len(first) < fixedHeadSize {
		return nil, broken(shard.CodeTruncated, "P-REC-7", "the file ends inside a record")
	}
	size, _ := blockStart(first)
	if size > d.size-position {
		return nil, mismatch(shard.CodeTruncated, "P-REC-7", "the file ends inside a record", atMost(d.size-position), size)
	}
	h, err := parseFixedHead(first, size)
	if err != nil {
		return nil, err
	}
	if h.headSize() > d.budget {
		return nil, broken(shard.CodeLimitExceeded, "", "too many false heads")
	}
	d.budget -= h.headSize()
	if first, err = d.bytes(position, int(min(size, firstRead))); err != nil {
		return nil, err
	}
	record, err := openRecord(d.source, position, size, first)
	if err != nil {
		return nil, err
	}
	record.block = bytes.Clone(record.block) // the window moves on
	return record, nil
}

// nextRecord gives where the next intact head starts, from a position on; the end of the file if there is none.
func (d *damaged) nextRecord(position uint64) (uint64, error) {
	const markerAt = blockStartSize - len(recordMarker)
	for position < d.size {
		found, err := d.bytes(position, window)
		if err != nil {
			return 0, err
		}
		at := -1
		if len(found) > markerAt {
			at = bytes.Index(found[markerAt:], []byte(recordMarker))
		}
		if at < 0 {
			// The last bytes may be the start of a head.
			position += max(1, uint64(len(found))-min(uint64(len(found)), blockStartSize-1))
			if uint64(len(found)) < blockStartSize {
				break
			}
			continue
		}
		position += uint64(at)
		record, err := d.open(position)
		if record != nil {
			return position, nil
		}
		if err != nil && !saysDataIsBad(err) {
			return 0, err
		}
		position++
	}
	return d.size, nil
}

// isEmpty tells whether only zero bytes follow.
func (d *damaged) isEmpty(position uint64) (bool, error) {
	for position < d.size {
		found, err := d.bytes(position, window)
		if err != nil || !isZero(found) {
			return false, err
		}
		position += uint64(len(found))
	}
	return true, nil
}

// bytes gives some bytes from a position on, at most a window; fewer at the end of the file. They are valid until the next
// call.
func (d *damaged) bytes(position uint64, most int) ([]byte, error) {
	end := min(d.size, position+uint64(most))
	if position < d.windowAt || end > d.windowAt+uint64(len(d.window)) {
		if d.window == nil {
			d.window = make([]byte, 0, min(d.size, 2*window))
		}
		size := min(d.size-position, 2*window)
		d.window, d.windowAt = d.window[:size], position
		count, err := d.source.ReadAt(d.window, int64(position))
		if uint64(count) < size {
			d.window = nil
			if err == nil || errors.Is(err, io.EOF) {
				err = broken(shard.CodeTruncated, "", "the file became shorter while it was read")
			}
			return nil, fault.IO("cannot read", d.source.name, err)
		}
	}
	start := position - d.windowAt
	return d.window[start : start+end-position], nil
}
