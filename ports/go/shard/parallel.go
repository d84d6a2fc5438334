package shard

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// inParallel does the work for 0 to count - 1 on as many goroutines as Go may run at once, and returns the error of the
// smallest number that has one. Work that did not start before an error is left out.
func inParallel(count int, work func(i int) error) error {
	if count == 1 {
		return work(0)
	}
	var (
		next   atomic.Int64
		group  sync.WaitGroup
		mutex  sync.Mutex
		failed = count
		first  error
	)
	for range min(runtime.GOMAXPROCS(0), count) {
		group.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= count {
					return
				}
				if err := work(i); err != nil {
					next.Store(int64(count))
					mutex.Lock()
					if i < failed {
						failed, first = i, err
					}
					mutex.Unlock()
				}
			}
		})
	}
	group.Wait()
	return first
}
