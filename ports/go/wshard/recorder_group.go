package wshard

import (
	"sync"
	"sync/atomic"
)

const (
	// largestBuffer is the size of a buffer that is full, however few steps it has.
	largestBuffer = 16 << 20
	fewestBuffers = 3
	mostBuffers   = 256
	// runsInFile is how many runs a file with a limit holds at least before it is full.
	runsInFile = 8
)

// channelGroup is the channels that are filled together, and their buffers.
type channelGroup struct {
	channels []*recordedChannel
	// named is how many of the channels have values by key; the others are fields of steps.
	named int
	// steps is how many entries a buffer holds, and largest how many bytes of ragged channels.
	steps, largest int

	// fill protects the fields below.
	fill     sync.Mutex
	current  *stepBuffer
	checked  [][]byte // the values of the step that is recorded now
	lastTime int64
	hasTime  bool

	written, dropped atomic.Int64
	pool             bufferPool
}

func newChannelGroup(channels []*recordedChannel, named int, o StreamOptions) *channelGroup {
	g := &channelGroup{channels: channels, named: named, largest: largestBuffer}
	if o.MaxBytesPerFile > 0 {
		g.largest = int(max(1, min(largestBuffer, o.MaxBytesPerFile/runsInFile)))
	}
	step := 1
	for _, c := range channels {
		if c.isRagged() {
			g.pool.limit = int64(o.BufferBytes)
		} else {
			step += c.entryBytes
		}
	}
	g.steps = max(1, min(o.FlushSteps, g.largest/step))
	g.pool.most = max(fewestBuffers, min(mostBuffers, o.BufferBytes/(step*g.steps)))
	g.pool.free = make([]*stepBuffer, 0, g.pool.most)
	g.pool.returned.L = &g.pool.lock
	return g
}

// bufferPool gives out the buffers of a group, and takes them back when they are written.
type bufferPool struct {
	lock     sync.Mutex
	returned sync.Cond
	free     []*stepBuffer
	made     int
	most     int
	// waiting is the bytes of ragged channels in buffers that wait to be written; at most about limit, if that is not 0.
	waiting, limit int64
}

// take gives an empty buffer. If there is none it waits, or gives nil.
func (p *bufferPool) take(g *channelGroup, waits bool) *stepBuffer {
	p.lock.Lock()
	defer p.lock.Unlock()
	for {
		if p.limit == 0 || p.waiting < p.limit {
			if count := len(p.free); count > 0 {
				b := p.free[count-1] // the one used last is still in the processor's cache
				p.free = p.free[:count-1]
				return b
			}
			if p.made < p.most {
				p.made++
				return newStepBuffer(g)
			}
		}
		if !waits {
			return nil
		}
		p.returned.Wait()
	}
}

// handOver counts what a buffer holds that waits to be written now.
func (p *bufferPool) handOver(b *stepBuffer) {
	p.lock.Lock()
	p.waiting += int64(b.ragged)
	p.lock.Unlock()
}

// giveBack takes a buffer that was written. ragged is what it held when it was handed over.
func (p *bufferPool) giveBack(b *stepBuffer, ragged int) {
	b.clear()
	p.lock.Lock()
	p.waiting -= int64(ragged)
	p.free = append(p.free, b)
	p.lock.Unlock()
	p.returned.Broadcast()
}
