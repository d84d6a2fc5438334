// Command benchmarks compares the container with other formats of Go, and prints Markdown tables.
//
//	cd ports/go/benchmarks && go run .
//
// Each number is the median of rounds in which all rows of a table take turns, so that a busy moment of the machine does
// not meet one of them alone. The time of the processors, of all goroutines together, is less disturbed by what else runs.
// Runs on Linux and macOS. It is a module of its own: the library does not depend on what it is compared with.
package main

import (
	"fmt"
	"log"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// row is one line of a table.
type row struct {
	name string
	// call does the work once. It is compared with the first row.
	call func() error
	// allocations tells whether to count them.
	allocations bool
}

func table(title string, rounds, calls int, rows []row) {
	times, used := make([][]time.Duration, len(rows)), make([][]time.Duration, len(rows))
	for range rounds {
		for i, one := range rows {
			runtime.GC() // nobody pays for the garbage of the row before
			began, before := time.Now(), processorTime()
			for range calls {
				check(one.call())
			}
			times[i] = append(times[i], time.Since(began)/time.Duration(calls))
			used[i] = append(used[i], (processorTime()-before)/time.Duration(calls))
		}
	}
	fmt.Printf("\n### %s\n\n| | median | relative | best | processor time | relative | allocations |\n|---|---:|---:|---:|---:|---:|---:|\n", title)
	share := func(of [][]time.Duration, i int) float64 { return float64(median(of[i])) / float64(median(of[0])) }
	for i, one := range rows {
		counted := ""
		if one.allocations {
			counted = fmt.Sprint(testing.AllocsPerRun(20, func() { check(one.call()) }))
		}
		fmt.Printf("| %s | %s | %.2f | %s | %s | %.2f | %s |\n", one.name, short(median(times[i])), share(times, i),
			short(slices.Min(times[i])), short(median(used[i])), share(used, i), counted)
	}
}

func processorTime() time.Duration {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}

func short(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%.1f µs", float64(d.Nanoseconds())/1e3)
	}
	return fmt.Sprintf("%.2f ms", float64(d.Nanoseconds())/1e6)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	folder, err := os.MkdirTemp("", "shard-benchmarks")
	check(err)
	defer func() { _ = os.RemoveAll(folder) }()
	fmt.Printf("%s, %s/%s, %d processors\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0))
	openOne(folder)
	million(folder)
	decode(folder)
}
