package shard

import (
	"os"
	"sync"
	"sync/atomic"
)

// mapping is a file in memory. The reader and every view use it; the last user unmaps it.
type mapping struct {
	data  []byte
	users atomic.Int64
	// checked has a bit for each entry that was compared with its checksum.
	checked []atomic.Uint32
}

// use adds a user, unless the mapping is gone.
func (m *mapping) use() bool {
	for {
		users := m.users.Load()
		if users == 0 {
			return false
		}
		if m.users.CompareAndSwap(users, users+1) {
			return true
		}
	}
}

func (m *mapping) done() {
	if m.users.Add(-1) == 0 {
		unmap(m.data)
	}
}

// EnableMmap maps the file, so that views need no copy and compressed entries are decoded straight from the mapping.
// View calls it. It fails with CodeNotViewable for a reader that was not opened from a file, and on systems without
// mmap; such a reader reads instead.
//
// Do not shorten a file that a process has mapped: the process ends when it touches what is gone.
func (r *ShardReader) EnableMmap() error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if err := r.checkOpen(); err != nil {
		return err
	}
	if r.mapping.Load() != nil {
		return nil
	}
	file, isFile := r.source.(*os.File)
	size := r.header.TotalFileSize
	if !isFile || uint64(int(size)) != size {
		return &Error{Code: CodeNotViewable, Path: r.name, Problem: "the source is not a file that can be mapped"}
	}
	data, err := mapFile(file, int(size))
	if err != nil {
		return &Error{Code: CodeNotViewable, Path: r.name, Problem: "the file cannot be mapped", Err: err}
	}
	m := &mapping{data: data, checked: make([]atomic.Uint32, (r.index.count+31)/32)}
	m.users.Store(1)
	r.mapping.Store(m)
	return nil
}

// View is a raw entry in place. Release it when you no longer use its bytes.
//
// A view outlives its reader: Close does not unmap a file as long as there is a view of it. A view that is never
// released keeps its file mapped until the process ends, which costs addresses but no memory.
type View struct {
	bytes   []byte
	mapping *mapping
	once    sync.Once
}

// Bytes gives the content. Do not write to it: the memory may be read-only. Do not use it after Release.
func (v *View) Bytes() []byte { return v.bytes }

// Release ends the view. A second call does nothing.
func (v *View) Release() {
	v.once.Do(func() {
		v.bytes = nil
		if v.mapping != nil {
			v.mapping.done()
		}
	})
}

// View gives the bytes of a raw entry without a copy where the file can be mapped, and reads them elsewhere. The checksum
// of an entry is compared before its first view. A compressed entry has no view: CodeNotViewable.
func (r *ShardReader) View(name string) (*View, error) {
	i, err := r.row(name)
	if err != nil {
		return nil, err
	}
	view, err := r.view(i, r.index.entry(i))
	if err != nil {
		return nil, located(err, r.name, name)
	}
	return view, nil
}

func (r *ShardReader) view(i int, e IndexEntry) (*View, error) {
	if err := r.checkOpen(); err != nil {
		return nil, err
	}
	codec, err := r.checkSizes(e)
	if err != nil {
		return nil, err
	}
	if codec != CodecNone {
		return nil, broken(CodeNotViewable, "", "a compressed entry has no view; read it").found("%s", codec)
	}
	m := r.mapping.Load()
	if m == nil && r.EnableMmap() == nil {
		m = r.mapping.Load()
	}
	if m == nil {
		data, err := r.readAll(e)
		return &View{bytes: data}, err
	}
	if !m.use() { // closed since it was checked
		return nil, &Error{Code: CodeClosed, Problem: "the reader is closed"}
	}
	view := &View{bytes: m.data[e.DataOffset:][:e.DiskSize:e.DiskSize], mapping: m}
	word, bit := &m.checked[i/32], uint32(1)<<(i%32)
	if word.Load()&bit == 0 {
		if err := r.verify(e, view.bytes); err != nil {
			view.Release()
			return nil, err
		}
		word.Or(bit)
	}
	return view, nil
}

// stored gives stored bytes to decode: those of the mapping, or a copy. Call done afterwards.
func (r *ShardReader) stored(offset, length uint64) (data []byte, done func(), err error) {
	if err := r.checkOpen(); err != nil {
		return nil, nil, err
	}
	if m := r.mapping.Load(); m != nil && m.use() {
		return m.data[offset:][:length:length], m.done, nil
	}
	if err := r.probe(offset, length); err != nil {
		return nil, nil, err
	}
	data, done = takeBuffer(length)
	if err := r.readInto(offset, data); err != nil {
		done()
		return nil, nil, err
	}
	return data, done, nil
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// takeBuffer gives memory for a short time. Call done when it may be used again.
func takeBuffer(size uint64) (data []byte, done func()) {
	buffer := buffers.Get().(*[]byte)
	if uint64(cap(*buffer)) < size {
		*buffer = make([]byte, size)
	}
	return (*buffer)[:size], func() {
		if size <= longRead { // a larger one would stay for the next small need
			buffers.Put(buffer)
		}
	}
}
